"""Find or download a model's files, and identify them by a digest."""
