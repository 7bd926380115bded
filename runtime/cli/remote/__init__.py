"""Clients of a running server: HTTP, events, progress, resources."""
