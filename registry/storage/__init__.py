"""Open, read, write and migrate a database: SQLAlchemy Core and Alembic.

Rooms keep their tables and migrations themselves: `registry.state`, `tenants.storage`.
"""
