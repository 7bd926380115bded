"""How a database is opened, read, written and migrated: SQLAlchemy Core and Alembic, over SQLite or PostgreSQL.

Rooms keep their tables and migrations themselves: `registry.state`, `tenants.storage`.
"""
