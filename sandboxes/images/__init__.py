"""What sandboxes are made from: declared, built, kept, verified."""
