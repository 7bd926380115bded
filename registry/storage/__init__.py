"""How a database is opened and brought up to date: SQLite in the data directory, or PostgreSQL.

Rooms keep their tables and migrations themselves. Not here yet: `registry.state`, which has its own SQLite file.
"""
