"""The tables of the state. Times are seconds since the epoch.

| table             | a row is                                                                                     |
|-------------------|----------------------------------------------------------------------------------------------|
| digests           | adapter content that is stored, or was removed recently; garbage if no version has it        |
| numbers           | the last version number of a name; kept after deletion, so name@v3 never means other content |
| adapters          | an adapter of a team on a base                                                               |
| versions          | a version of an adapter, by number                                                           |
| currents          | a stack for each adapter: the top is the current version, and rollback pops it               |
| aliases           | a name for a version                                                                         |
| routers, router_* | the same for routers, which have no team, base, rank, probe or pin                           |
| model_pins        | a model that an operator pinned, or unpinned, at run time                                    |
| model_aliases     | a model alias that was created at run time                                                   |
| loads, sleeps     | the measured cost of a model's loads and sleeps                                              |

On SQLite the tables are STRICT.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "state_version"
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")


def _table(name: str, *columns: sa.schema.SchemaItem, counts: bool = False) -> sa.Table:
    """Define a table. counts: the database never reuses an automatic number."""
    return sa.Table(name, METADATA, *columns, sqlite_strict=True, sqlite_autoincrement=counts)


def _text(name: str, *more: sa.schema.SchemaItem, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, *more, primary_key=key, nullable=False)


def _whole(
    name: str, *more: sa.schema.SchemaItem, key: bool = False, default: str | None = None, as_: str | None = None
) -> sa.Column[int]:
    return sa.Column(
        name,
        _WHOLE,
        *more,
        primary_key=key,
        nullable=False,
        autoincrement=False,
        server_default=default,
        key=as_ or name,
    )


def _real(name: str, default: str | None = None) -> sa.Column[float]:
    return sa.Column(name, _REAL, nullable=False, server_default=default)


@dataclass(frozen=True, slots=True)
class VersionTables:
    """Five tables of one kind of name. In the last three, `owner` is the id in `heads`."""

    numbers: sa.Table
    heads: sa.Table
    versions: sa.Table
    currents: sa.Table
    aliases: sa.Table

    @property
    def key_names(self) -> list[str]:
        return [column.name for column in self.numbers.primary_key]


def _version_tables(
    noun: str, prefix: str, key: tuple[str, ...], head: tuple[sa.Column[int], ...], version: tuple[sa.Column[Any], ...]
) -> VersionTables:
    heads, versions = f"{noun}s", f"{prefix}versions"

    def of_version() -> sa.ForeignKeyConstraint:
        return sa.ForeignKeyConstraint(
            ["owner", "number"], [f"{versions}.owner", f"{versions}.number"], ondelete="CASCADE"
        )

    return VersionTables(
        _table(f"{prefix}numbers", *(_text(name, key=True) for name in key), _whole("last")),
        _table(
            heads,
            sa.Column("id", _WHOLE, primary_key=True),
            *(_text(name) for name in key),
            _real("created"),
            *head,
            sa.UniqueConstraint(*key),
        ),
        _table(
            versions,
            _whole(noun, sa.ForeignKey(f"{heads}.id", ondelete="CASCADE"), key=True, as_="owner"),
            _whole("number", key=True),
            _text("digest", *((sa.ForeignKey("digests.digest"),) if version else ())),
            _real("created"),
            _whole("bytes"),
            _text("source"),
            *version,
            sa.Index(f"{versions}_by_digest", "digest"),
        ),
        _table(
            f"{prefix}currents",
            sa.Column("seq", _WHOLE, primary_key=True),
            _whole(noun, as_="owner"),
            _whole("number"),
            of_version(),
            sa.Index(f"{prefix}currents_by_{noun}", "owner", "seq"),
            counts=True,
        ),
        _table(
            f"{prefix}aliases",
            _whole(noun, key=True, as_="owner"),
            _text("alias", key=True),
            _whole("number"),
            of_version(),
        ),
    )


DIGESTS = _table("digests", _text("digest", key=True), _whole("bytes"), sa.Column("removed", _REAL))
ADAPTERS = _version_tables(
    "adapter",
    "",
    ("base", "name", "team"),
    (_whole("pinned", default="0"), _whole("shared", default="0")),
    (_whole("rank"), *(sa.Column(name, sa.Text) for name in ("prompt", "expected", "base_origin"))),
)
ROUTERS = _version_tables("router", "router_", ("name",), (), ())
MODEL_PINS = _table("model_pins", _text("model", key=True), _whole("pinned"))
MODEL_ALIASES = _table("model_aliases", _text("alias", key=True), _text("model"))


def _load_key() -> tuple[sa.Column[str] | sa.Column[int], ...]:
    return (
        _text("model", key=True), _whole("recipe_version", key=True), _text("engine_version", key=True),
        _text("device", key=True),
    )  # fmt: skip


LOADS = _table(
    "loads",
    *_load_key(),
    _whole("resident"),
    _text("seconds"),
    _whole("count"),
    _real("updated"),
    sa.Column("host", _WHOLE),
    _whole("margin", default="0"),
    _real("margin_seen", default="0"),
)
SLEEPS = _table(
    "sleeps", *_load_key(), _whole("bytes"), _whole("host"), _text("seconds"), _whole("count"), _real("updated")
)
COUNTED = tuple(column for one in (ADAPTERS, ROUTERS) for column in (one.heads.c.id, one.currents.c.seq))
"""Columns whose values the database generates."""
