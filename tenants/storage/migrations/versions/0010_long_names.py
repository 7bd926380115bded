"""Room for the longest names: adapters with team and digest, models with a version.

SQLite ignores lengths.
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
