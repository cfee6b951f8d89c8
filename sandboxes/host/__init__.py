"""What the host's kernel offers to bound, watch and own processes."""
