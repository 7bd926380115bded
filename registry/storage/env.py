"""How Alembic runs migrations: on the connection and with the table that `registry.storage.migration` gives."""

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], version_table=given["table"])
context.run_migrations()
