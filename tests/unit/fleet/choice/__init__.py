"""The choice of nodes for a request."""
