"""Sources of the manual's generated parts: one file per table."""
