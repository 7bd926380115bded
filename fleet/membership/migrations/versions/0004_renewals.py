"""The number of lease renewals, by which servers notice a database in an older state."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    renewals = op.create_table(
        "renewals",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(renewals, [{"id": 1, "count": 0}])
