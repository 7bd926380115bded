"""Sessions of signed-in browsers."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False, index=True),
        sa.Column("credential", sa.Text, nullable=False),
        sa.Column("ends", sa.DateTime(timezone=True), nullable=False),
    )
