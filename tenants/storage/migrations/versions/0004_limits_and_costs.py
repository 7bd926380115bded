"""Limits of teams and keys, prices and costs, verdicts on answers, and teams' time zones."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"
_COUNTS = ("pairs", "device_us", "cold_ms", "cost_micro", "own_micro")


def upgrade() -> None:
    op.add_column("teams", sa.Column("timezone", sa.String(64), nullable=False, server_default="UTC"))
    op.create_table(
        "limits",
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("owner", sa.String(8), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("emails", sa.JSON, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_index("ix_limits_subject", "limits", ["owner", "subject"])
    op.create_table(
        "prices",
        sa.Column("version", sa.String(16), primary_key=True),
        sa.Column("currency", sa.String(8), nullable=False),
        sa.Column("input", sa.BigInteger, nullable=False),
        sa.Column("cached", sa.BigInteger, nullable=False),
        sa.Column("output", sa.BigInteger, nullable=False),
        sa.Column("audio_hour", sa.BigInteger, nullable=False),
        sa.Column("pairs", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    reserved = ("reserved_tokens", "reserved_micro", "reserved_audio_ms")
    for name in (*_COUNTS, *reserved):
        op.add_column("ledger", _count(name))
    op.add_column("ledger", sa.Column("price_version", sa.String(16), nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("accepted", sa.Boolean))
    op.create_index("ix_ledger_request", "ledger", ["request"])
    for name in (*_COUNTS, "lost_micro", "accepted", "rejected"):
        op.add_column("hours", _count(name))


def _count(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
