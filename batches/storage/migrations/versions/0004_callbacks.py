"""Webhooks and the outbox of deliveries; a batch's callback, storage time of answers, and queued tokens."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False, server_default="") for name in names]


def upgrade() -> None:
    op.add_column("batches", *_texts("callback"))
    op.add_column("batches", sa.Column("output_seconds", sa.BigInteger))
    op.add_column("batches", sa.Column("queued", sa.JSON, nullable=False, server_default="{}"))
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("team", sa.String(64), nullable=False),
        *_texts("name", "url"),
        sa.Column("events", sa.JSON, nullable=False),
        *_texts("secret", "previous"),
        sa.Column("previous_until", sa.Double),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("updated", sa.Double, nullable=False),
    )
    op.create_index("ix_webhooks_team", "webhooks", ["team", "created", "id"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("batch", sa.String(64), nullable=False, index=True),
        sa.Column("webhook", sa.String(128), nullable=False, index=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("due", sa.Double, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("status", sa.Integer),
        *_texts("error"),
        sa.Column("ended", sa.Double, index=True),
    )
    for name, column, state in (("ix_outbox_pending", "due", "pending"), ("ix_outbox_sending", "epoch", "sending")):
        where = sa.text(f"state = '{state}'")
        op.create_index(name, "outbox", [column], sqlite_where=where, postgresql_where=where)
