"""Which nodes get a request."""
