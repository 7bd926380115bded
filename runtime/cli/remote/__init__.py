"""What speaks to a running server: HTTP client, events, progress, resources."""
