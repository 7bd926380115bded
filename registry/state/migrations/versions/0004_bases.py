"""Versions of adapters remember of which model their base was made. It is unknown for earlier ones."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0004", "0003", "0002"


def upgrade() -> None:
    op.add_column("versions", sa.Column("base_origin", sa.Text))
