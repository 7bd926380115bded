"""A model's files: resolved to a folder, downloaded, and identified by a digest."""
