"""The page Usage."""
