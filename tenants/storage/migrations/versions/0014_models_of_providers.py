"""Room for the longest names of providers' models. SQLite ignores lengths."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0014", "0013", "0012"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in ("ledger", "hours", "limits"):
            op.alter_column(table, "model", type_=sa.String(208))
