"""Room for the longest name of a model with its version. SQLite ignores lengths."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0005", "0004", "0004"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("rates", "room", type_=sa.String(144))
