"""Servers' shares of limits on requests at once."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0007", "0006", "0006"


def upgrade() -> None:
    op.create_table(
        "at_once",
        sa.Column("limit_id", sa.String(64), primary_key=True),
        sa.Column("server", sa.String(64), primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
    )
