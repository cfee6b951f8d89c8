"""Sandboxes on other machines' worker processes."""
