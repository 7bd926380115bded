"""The ledger of requests, and its hourly sums."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.create_table(
        "ledger",
        sa.Column("uid", sa.String(32), primary_key=True),
        sa.Column("request", sa.String(128), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("server", sa.String(32), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("hour", sa.BigInteger, nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("key", sa.String(8), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("revision", sa.String(128), nullable=False),
        sa.Column("adapter", sa.String(160), nullable=False),
        sa.Column("service_class", sa.String(16), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("end", sa.String(16)),
        sa.Column("status", sa.Integer),
        sa.Column("code", sa.String(64)),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("audio_ms", sa.BigInteger, nullable=False),
        sa.Column("queue_ms", sa.BigInteger, nullable=False),
        sa.Column("first_ms", sa.BigInteger),
        sa.Column("total_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_ledger_at", "ledger", ["at"])
    opened = sa.text("state = 'open'")
    op.create_index("ix_ledger_open", "ledger", ["server"], sqlite_where=opened, postgresql_where=opened)
    op.create_table(
        "hours",
        sa.Column("hour", sa.BigInteger, primary_key=True),
        sa.Column("team", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(8), primary_key=True),
        sa.Column("model", sa.String(128), primary_key=True),
        sa.Column("adapter", sa.String(160), primary_key=True),
        sa.Column("endpoint", sa.String(64), primary_key=True),
        sa.Column("service_class", sa.String(16), primary_key=True),
        sa.Column("source", sa.String(16), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("interrupted", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("audio_ms", sa.BigInteger, nullable=False),
        sa.Column("queue_ms", sa.BigInteger, nullable=False),
        sa.Column("total_ms", sa.BigInteger, nullable=False),
    )
