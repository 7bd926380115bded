"""Desired replicas, and models that were placed by hand."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    op.create_table(
        "desired",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("replicas", sa.JSON, nullable=False),
    )
    op.create_table(
        "placements",
        sa.Column("model", sa.String(200), primary_key=True),
        sa.Column("replicas", sa.Integer),
        sa.Column("nodes", sa.JSON, nullable=False),
    )
