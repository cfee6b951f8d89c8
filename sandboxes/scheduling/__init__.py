"""Which request goes to which host, and when."""
