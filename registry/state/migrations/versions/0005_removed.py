"""Removed adapters stay known for a while, so that other adapters that the state does not know are never deleted."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0005", "0004", "0002"


def upgrade() -> None:
    op.add_column("digests", sa.Column("removed", sa.Double().with_variant(sa.REAL(), "sqlite")))
