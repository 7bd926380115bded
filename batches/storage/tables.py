"""The tables of batches, in the ledger's database. Times are seconds since the epoch.

| table    | a row is                                                                                      |
|----------|-----------------------------------------------------------------------------------------------|
| files    | a file that a team uploaded, or the input of a batch that was sent without a file             |
| pieces   | 1 MiB of a file's bytes, on PostgreSQL. With SQLite, they are in the data directory           |
| batches  | a batch with its counts, which change in the transaction that changes its lines               |
| lines    | a line of a batch; its request is in the input file, its result is here                       |
| runners  | a run of a server that executes lines; its number is the epoch under which it claims them     |
| rates    | how fast one server ran lines of one model, for forecasts                                     |
| webhooks | a URL that receives a team's events, or the signer of its `callback_url`s                     |
| outbox   | an event to deliver to a URL, written in the transaction that ends the batch                  |
"""

import sqlalchemy as sa

from tenants.storage.tables import index_where

METADATA = sa.MetaData()
VERSION_TABLE = "batches_version"


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in names]


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False, server_default="") for name in names]


FILES = sa.Table(
    "files",
    METADATA,
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
    sa.Index("ix_files_team", "team", "created", "id"),
)
PIECES = sa.Table(
    "pieces",
    METADATA,
    sa.Column("file", sa.String(64), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
BATCHES = sa.Table(
    "batches",
    METADATA,
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
    *(sa.Column(name, sa.JSON(none_as_null=True)) for name in ("forecast", "first_forecast", "tenth_forecast")),
    sa.Column("validator", sa.String(32), nullable=False, server_default=""),
    sa.Column("judged", sa.Boolean, nullable=False, server_default=sa.false()),
    *_texts("callback"),
    sa.Column("output_seconds", sa.BigInteger),
    sa.Column("queued", sa.JSON, nullable=False, server_default="{}"),
    sa.Index("ix_batches_team", "team", "created", "id"),
    sa.Index("ix_batches_state", "state"),
)
LINES = sa.Table(
    "lines",
    METADATA,
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
    index_where("ix_lines_waiting", "batch", "model", "number", where="state = 'waiting'"),
    index_where("ix_lines_running", "epoch", "batch", where="state = 'running'"),
)
RUNNERS = sa.Table(
    "runners",
    METADATA,
    sa.Column("epoch", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("server", sa.String(32), nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("closed", sa.Double),
    sqlite_autoincrement=True,
)
RATES = sa.Table(
    "rates",
    METADATA,
    sa.Column("server", sa.String(32), primary_key=True),
    sa.Column("room", sa.String(128).with_variant(sa.String(144), "postgresql"), primary_key=True),
    sa.Column("per_second", sa.Double, nullable=False),
    sa.Column("spread", sa.Double, nullable=False),
    sa.Column("measured", sa.Double, nullable=False),
)
WEBHOOKS = sa.Table(
    "webhooks",
    METADATA,
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("team", sa.String(64), nullable=False),
    *_texts("name", "url"),
    sa.Column("events", sa.JSON, nullable=False),
    *_texts("secret", "previous"),
    sa.Column("previous_until", sa.Double),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Index("ix_webhooks_team", "team", "created", "id"),
)
OUTBOX = sa.Table(
    "outbox",
    METADATA,
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
    *_numbers("attempts"),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("status", sa.Integer),
    *_texts("error"),
    sa.Column("ended", sa.Double, index=True),
    index_where("ix_outbox_pending", "due", where="state = 'pending'"),
    index_where("ix_outbox_sending", "epoch", where="state = 'sending'"),
)
