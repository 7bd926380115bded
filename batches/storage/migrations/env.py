"""Runs this database's migrations in Alembic, on the connection from `registry.storage.migration`."""

from alembic import context

from batches.storage.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE
)
context.run_migrations()
