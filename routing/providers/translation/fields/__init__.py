"""What becomes of each field of a translated request: one table per dialect."""
