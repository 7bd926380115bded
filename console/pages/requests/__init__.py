"""The page Requests."""
