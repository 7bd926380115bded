"""Room for the longest names: an adapter is written with its team and digest, a model perhaps with its version.

SQLite counts no letters.
"""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0010", "0009"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in ("ledger", "hours"):
            op.alter_column(table, "model", type_=sa.String(144))
            op.alter_column(table, "adapter", type_=sa.String(208))
        op.alter_column("ledger", "target", type_=sa.String(288))
