"""State that outlives a restart, in SQLite or PostgreSQL, behind one writer."""
