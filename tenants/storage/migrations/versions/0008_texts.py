"""Whether the texts of a team's latest requests are kept for the console."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0008", "0007"


def upgrade() -> None:
    op.add_column("teams", sa.Column("store_texts", sa.Boolean, nullable=False, server_default=sa.false()))
