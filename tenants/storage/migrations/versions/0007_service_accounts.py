"""Service accounts, which own keys in OpenAI's administration API."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0007", "0006"


def upgrade() -> None:
    op.create_table(
        "service_accounts",
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("deleted", sa.Double),
    )
    op.create_index("ix_service_accounts_team", "service_accounts", ["team"])
    op.add_column("api_keys", sa.Column("account", sa.String(24)))
