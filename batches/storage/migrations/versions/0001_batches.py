"""Files, batches and their lines; runs of servers that execute them."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in names]


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False, server_default="") for name in names]


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, index=True),
        sa.Column("state", sa.String(16), nullable=False),
        *_texts("details"),
        sa.Column("lines", sa.BigInteger),
        sa.Column("deleted", sa.Double),
        sa.Column("idempotency", sa.String(256), nullable=False, server_default=""),
        sa.Column("body_hash", sa.String(64), nullable=False, server_default=""),
    )
    op.create_index("ix_files_team", "files", ["team", "created", "id"])
    op.create_table(
        "pieces",
        sa.Column("file", sa.String(64), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("key", sa.String(8), nullable=False),
        sa.Column("surface", sa.String(16), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file", sa.String(64), nullable=False, index=True),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("window", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("names", sa.JSON, nullable=False),
        sa.Column("idempotency", sa.String(256), nullable=False, server_default=""),
        sa.Column("body_hash", sa.String(64), nullable=False, server_default=""),
        sa.Column("started", sa.Double),
        sa.Column("cancelling", sa.Double),
        sa.Column("ended", sa.Double),
        sa.Column("deleted", sa.Double),
        *_numbers("total", "completed", "failed", "cancelled", "expired"),
        *_numbers("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "output_bytes"),
        sa.Column("faults", sa.JSON, nullable=False),
        *_numbers("fault_count"),
        *_texts("waits"),
        sa.Column("waits_until", sa.Double),
    )
    op.create_index("ix_batches_team", "batches", ["team", "created", "id"])
    op.create_index("ix_batches_state", "batches", ["state"])
    op.create_table(
        "lines",
        sa.Column("batch", sa.String(64), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("custom_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        *_numbers("attempts", "deaths"),
        sa.Column("ready", sa.Double, nullable=False, server_default="0"),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("uid", sa.String(32)),
        sa.Column("status", sa.Integer),
        *_texts("code", "request", "served", "adapter"),
        sa.Column("result", sa.LargeBinary),
    )
    for name, columns, state in (
        ("ix_lines_waiting", ["batch", "model", "number"], "waiting"),
        ("ix_lines_running", ["epoch", "batch"], "running"),
    ):
        where = sa.text(f"state = '{state}'")
        op.create_index(name, "lines", columns, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "runners",
        sa.Column("epoch", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("server", sa.String(32), nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seen", sa.Double, nullable=False),
        sa.Column("closed", sa.Double),
        sqlite_autoincrement=True,
    )
