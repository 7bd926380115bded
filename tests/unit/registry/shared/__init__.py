"""Names that servers share, on a real PostgreSQL."""
