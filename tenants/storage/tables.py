"""The tables of teams, keys and the ledger. Times are seconds since the epoch.

| table            | a row is                                                                                        |
|------------------|-------------------------------------------------------------------------------------------------|
| teams            | a team; if archived, its keys are refused. Never deleted, because its usage stays               |
| api_keys         | a key by its HMAC. Ended keys stay until pruned, the last one always: an empty table is 'open'  |
| ledger           | a request: `tenants.ledger`                                                                     |
| hours            | the sums of ended requests with the same hour, team, key, model, ..., until pruned              |
| pruned           | one row: the first hour whose ledger rows still exist                                           |
| service_accounts | an owner of keys in OpenAI's administration API                                                 |
| limits           | a limit of a team or key: `tenants.limits`                                                      |
| prices           | a version of a recipe's prices                                                                  |
| responses        | a stored response with all of its input: `tenants.responses`                                    |
| response_items   | an item of a stored response, which later requests may name; deleted with its response          |
| keyring          | one row: `revision` increases with each change, so that servers notice; a mark of the pepper    |
"""

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "tenants_version"


def _wider(before: int, now: int) -> sa.types.TypeEngine[str]:
    """Return the type of a string that became longer. SQLite ignores lengths, and would have to copy the table."""
    return sa.String(before).with_variant(sa.String(now), "postgresql")


def _numbers(*names: str, default: str | None = None) -> list[sa.Column[int]]:
    """Return integer columns. default: for rows older than the column."""
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default=default) for name in names]


def index_where(name: str, *columns: str, where: str) -> sa.Index:
    """Return an index of only the rows that fulfil a condition."""
    return sa.Index(name, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


TEAMS = sa.Table(
    "teams",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("archived", sa.Double),
    sa.Column("weight", sa.Double, nullable=False, server_default="1"),
    sa.Column("timezone", sa.String(64), nullable=False, server_default="UTC"),
    sa.Column("store_texts", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("response_hours", sa.Integer, nullable=False, server_default="0"),
)
KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("id", sa.String(8), primary_key=True),
    sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False, index=True),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("models", sa.JSON, nullable=False),
    sa.Column("adapters", sa.JSON, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double),
    sa.Column("revoked", sa.Double),
    sa.Column("replaces", sa.String(8)),
    sa.Column("account", sa.String(24)),
    sa.Column("service_class", sa.String(16)),
    sa.Column("ceiling", sa.String(16)),
    sa.Column("timeout", sa.Double),
)
ACCOUNTS = sa.Table(
    "service_accounts",
    METADATA,
    sa.Column("id", sa.String(24), primary_key=True),
    sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False, index=True),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("deleted", sa.Double),
)
LIMITS = sa.Table(
    "limits",
    METADATA,
    sa.Column("id", sa.String(24), primary_key=True),
    sa.Column("owner", sa.String(8), nullable=False),
    sa.Column("subject", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("model", _wider(128, 208), nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("mode", sa.String(16), nullable=False),
    sa.Column("emails", sa.JSON, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Index("ix_limits_subject", "owner", "subject"),
)
PRICES = sa.Table(
    "prices",
    METADATA,
    sa.Column("version", sa.String(16), primary_key=True),
    sa.Column("currency", sa.String(8), nullable=False),
    *_numbers("input", "cached", "output", "audio_hour", "pairs", "written"),
    sa.Column("created", sa.Double, nullable=False),
)
KEYRING = sa.Table(
    "keyring",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("pepper", sa.LargeBinary),
)
CHANGED = sa.update(KEYRING).values(revision=KEYRING.c.revision + 1)
"""Executed with each change of teams, keys and limits."""

LEDGER = sa.Table(
    "ledger",
    METADATA,
    sa.Column("uid", sa.String(32), primary_key=True),
    sa.Column("request", sa.String(128), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("server", sa.String(32), nullable=False),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("hour", sa.BigInteger, nullable=False),
    sa.Column("team", sa.String(64), nullable=False),
    sa.Column("key", sa.String(8), nullable=False),
    sa.Column("endpoint", sa.String(64), nullable=False),
    sa.Column("model", _wider(128, 208), nullable=False),
    sa.Column("revision", sa.String(128), nullable=False),
    sa.Column("adapter", _wider(160, 208), nullable=False),
    sa.Column("service_class", sa.String(16), nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("end", sa.String(16)),
    sa.Column("status", sa.Integer),
    sa.Column("code", sa.String(64)),
    *_numbers("prompt_tokens", "cached_tokens", "completion_tokens", "audio_ms", "queue_ms"),
    sa.Column("first_ms", sa.BigInteger),
    sa.Column("total_ms", sa.BigInteger, nullable=False),
    *_numbers("pairs", "device_us", "cold_ms", "cost_micro", "own_micro", default="0"),
    sa.Column("price_version", sa.String(16), nullable=False, server_default=""),
    *_numbers("reserved_tokens", "reserved_micro", "reserved_audio_ms", default="0"),
    sa.Column("accepted", sa.Boolean),
    sa.Column("asked", sa.String(128), nullable=False, server_default=""),
    sa.Column("router", sa.String(96), nullable=False, server_default=""),
    sa.Column("target", _wider(208, 288), nullable=False, server_default=""),
    sa.Column("reason", sa.String(128), nullable=False, server_default=""),
    sa.Column("score", sa.Double),
    sa.Index("ix_ledger_request", "request"),
    index_where("ix_ledger_router", "router", "at", where="router <> ''"),
    index_where("ix_ledger_open", "server", where="state = 'open'"),
)
PRUNED = sa.Table(
    "pruned",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hour", sa.BigInteger, nullable=False),
)
HOURS = sa.Table(
    "hours",
    METADATA,
    sa.Column("hour", sa.BigInteger, primary_key=True),
    sa.Column("team", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(8), primary_key=True),
    sa.Column("model", _wider(128, 208), primary_key=True),
    sa.Column("adapter", _wider(160, 208), primary_key=True),
    sa.Column("endpoint", sa.String(64), primary_key=True),
    sa.Column("service_class", sa.String(16), primary_key=True),
    sa.Column("source", sa.String(16), primary_key=True),
    *_numbers("requests", "interrupted"),
    *_numbers("prompt_tokens", "cached_tokens", "completion_tokens", "audio_ms", "queue_ms", "total_ms"),
    *_numbers("pairs", "device_us", "cold_ms", "cost_micro", "own_micro", "lost_micro", default="0"),
    *_numbers("accepted", "rejected", default="0"),
    sa.Index("ix_hours_key", "key", "hour"),
)
RESPONSES = sa.Table(
    "responses",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("team", sa.String(64), sa.ForeignKey("teams.id"), nullable=False),
    sa.Column("server", sa.String(32), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False, index=True),
    sa.Column("running", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Index("ix_responses_team", "team", "created", "bytes"),
    sa.Index(
        "ix_responses_running", "server", sqlite_where=sa.text("running = 1"), postgresql_where=sa.text("running")
    ),
)
RESPONSE_ITEMS = sa.Table(
    "response_items",
    METADATA,
    sa.Column("response", sa.String(64), sa.ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, index=True),
    sa.Column("item", sa.LargeBinary, nullable=False),
)
