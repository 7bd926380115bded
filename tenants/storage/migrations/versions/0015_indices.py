"""Indices for what a start reads: what keys with budgets have spent, and responses that an earlier run left."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "0015", "0014", "0012"


def upgrade() -> None:
    op.create_index("ix_hours_key", "hours", ["key", "hour"])
    op.create_index(
        "ix_responses_running",
        "responses",
        ["server"],
        sqlite_where=sa.text("running = 1"),
        postgresql_where=sa.text("running"),
    )
