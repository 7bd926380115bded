"""What each server has taken of a budget."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0008", "0007", "0006"


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("limit_id", sa.String(64), primary_key=True),
        sa.Column("window", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("server", sa.String(64), primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("ends", sa.BigInteger, nullable=False),
    )
