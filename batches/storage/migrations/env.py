"""How Alembic runs the migrations of this room: on the connection that `registry.storage.migration` gives."""

from alembic import context

from batches.storage.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE
)
context.run_migrations()
