"""The first hour whose rows still exist: older rows may be deleted, but not their sums."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0011", "0010"


def upgrade() -> None:
    op.create_table(
        "pruned",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("hour", sa.BigInteger, nullable=False),
    )
