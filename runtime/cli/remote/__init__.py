"""Clients for a running server: HTTP, events, progress, resources."""
