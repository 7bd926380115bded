"""Forecasts of batches, and how fast lines of each model ran."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    for name in ("forecast", "first_forecast", "tenth_forecast"):
        op.add_column("batches", sa.Column(name, sa.JSON))
    op.add_column("batches", sa.Column("judged", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "rates",
        sa.Column("server", sa.String(32), primary_key=True),
        sa.Column("room", sa.String(128), primary_key=True),
        sa.Column("per_second", sa.Double, nullable=False),
        sa.Column("spread", sa.Double, nullable=False),
        sa.Column("measured", sa.Double, nullable=False),
    )
