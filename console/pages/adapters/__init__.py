"""The page Adapters."""
