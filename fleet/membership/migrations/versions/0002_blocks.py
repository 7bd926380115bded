"""Blocks of limits."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.create_table(
        "blocks",
        sa.Column("limit_id", sa.String(64), primary_key=True),
        sa.Column("window", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("capacity", sa.BigInteger, nullable=False),
        sa.Column("granted", sa.BigInteger, nullable=False),
        sa.Column("taken", sa.BigInteger, nullable=False),
    )
