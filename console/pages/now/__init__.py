"""The page Now."""
