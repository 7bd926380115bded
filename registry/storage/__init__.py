"""Open, read, write and migrate a database: SQLAlchemy Core and Alembic.

The packages that store something define their own tables and migrations, such as `registry.state`.
"""
