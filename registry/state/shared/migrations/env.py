"""How Alembic runs the migrations of shared names: on the connection that `registry.storage.migration` gives."""

from alembic import context

from registry.state.shared.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE
)
context.run_migrations()
