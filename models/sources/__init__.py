"""Where a model's files are: resolved to a folder, and known by a digest."""
