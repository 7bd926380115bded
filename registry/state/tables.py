"""Tables as they are now. Times are seconds since the epoch.

| table         | a row is                                                                                    |
|---------------|---------------------------------------------------------------------------------------------|
| digests       | content that was registered once: garbage, when no version has it                            |
| numbers       | the last number of a name; it outlives the adapter: name@v3 never comes to mean other content |
| adapters      | an adapter of a team on a base                                                               |
| versions      | its versions, by number                                                                      |
| currents      | a stack for each adapter: the top is the current version, rollback takes it off              |
| aliases       | a name for one of its versions                                                               |
| model_pins    | a model that was pinned, or not to be pinned, at run time                                    |
| model_aliases | a name for a model that was given at run time                                                |
| loads, sleeps | what loads and sleeps of a model have cost so far                                            |

On SQLite they are STRICT, and of the types that such tables may have.
"""

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "state_version"
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")


def _table(name: str, *columns: sa.schema.SchemaItem, counts: bool = False) -> sa.Table:
    """counts: a number that was given is never given again."""
    return sa.Table(name, METADATA, *columns, sqlite_strict=True, sqlite_autoincrement=counts)


def _text(name: str, *more: sa.schema.SchemaItem, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, *more, primary_key=key, nullable=False)


def _whole(name: str, *more: sa.schema.SchemaItem, key: bool = False, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, _WHOLE, *more, primary_key=key, nullable=False, autoincrement=False, server_default=default)


def _real(name: str, default: str | None = None) -> sa.Column[float]:
    return sa.Column(name, _REAL, nullable=False, server_default=default)


def _of_version() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["adapter", "number"], ["versions.adapter", "versions.number"], ondelete="CASCADE")


DIGESTS = _table("digests", _text("digest", key=True), _whole("bytes"))
NUMBERS = _table("numbers", _text("base", key=True), _text("name", key=True), _text("team", key=True), _whole("last"))
ADAPTERS = _table(
    "adapters",
    sa.Column("id", _WHOLE, primary_key=True),
    _text("base"),
    _text("name"),
    _text("team"),
    _real("created"),
    _whole("pinned", default="0"),
    _whole("shared", default="0"),
    sa.UniqueConstraint("base", "name", "team"),
)
VERSIONS = _table(
    "versions",
    _whole("adapter", sa.ForeignKey("adapters.id", ondelete="CASCADE"), key=True),
    _whole("number", key=True),
    _text("digest", sa.ForeignKey("digests.digest")),
    _real("created"),
    _whole("rank"),
    _whole("bytes"),
    _text("source"),
    sa.Column("prompt", sa.Text),
    sa.Column("expected", sa.Text),
    sa.Index("versions_by_digest", "digest"),
)
CURRENTS = _table(
    "currents",
    sa.Column("seq", _WHOLE, primary_key=True),
    _whole("adapter"),
    _whole("number"),
    _of_version(),
    sa.Index("currents_by_adapter", "adapter", "seq"),
    counts=True,
)
ALIASES = _table("aliases", _whole("adapter", key=True), _text("alias", key=True), _whole("number"), _of_version())
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
COUNTED = (ADAPTERS.c.id, CURRENTS.c.seq)
"""Columns whose values the database gives."""
