"""A data directory outlives its server: backup, restore, and what an older version wrote."""
