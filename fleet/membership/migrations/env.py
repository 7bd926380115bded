"""How Alembic runs the migrations of a fleet: on the connection that `registry.storage.migration` gives."""

from alembic import context

from fleet.membership.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE
)
context.run_migrations()
