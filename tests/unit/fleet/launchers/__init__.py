"""How servers of a fleet are started, found again and ended."""
