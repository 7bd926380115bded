"""Recipes of models that were added at run time."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0002", "0001", "0001"


def upgrade() -> None:
    op.create_table(
        "recipes",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
