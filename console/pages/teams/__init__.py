"""The page Teams."""
