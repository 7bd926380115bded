"""What speaks to a running server: the HTTP client, its events, progress, and how often it tries."""
