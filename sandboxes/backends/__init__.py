"""The places where sandboxes can be."""
