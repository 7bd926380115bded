"""The state in the last format before Alembic. A file of that format already has these tables."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None
FORMAT = 5
"""The format number by which releases before Alembic accept the file. Later revisions raise it so that they refuse."""
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
LOAD = ("model", "recipe_version", "engine_version", "device")


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def whole(name: str, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, WHOLE, nullable=False, autoincrement=False, server_default=default)


def real(name: str, default: str | None = None) -> sa.Column[float]:
    return sa.Column(name, REAL, nullable=False, server_default=default)


def table(name: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...] = (), counts: bool = False) -> None:
    keys = [sa.PrimaryKeyConstraint(*key)] if key else []
    op.create_table(name, *parts, *keys, sqlite_strict=True, sqlite_autoincrement=counts)


def of_version() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["adapter", "number"], ["versions.adapter", "versions.number"], ondelete="CASCADE")


def upgrade() -> None:
    if sa.inspect(op.get_bind()).has_table("adapters"):
        return
    table("digests", text("digest"), whole("bytes"), key=("digest",))
    table("numbers", text("base"), text("name"), text("team"), whole("last"), key=("base", "name", "team"))
    table(
        "adapters", sa.Column("id", WHOLE, primary_key=True), text("base"), text("name"), text("team"),
        real("created"), whole("pinned", "0"), whole("shared", "0"), sa.UniqueConstraint("base", "name", "team"),
    )  # fmt: skip
    table(
        "versions", whole("adapter"), whole("number"), text("digest"), real("created"), whole("rank"), whole("bytes"),
        text("source"), sa.Column("prompt", sa.Text), sa.Column("expected", sa.Text),
        sa.ForeignKeyConstraint(["adapter"], ["adapters.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["digest"], ["digests.digest"]), key=("adapter", "number"),
    )  # fmt: skip
    op.create_index("versions_by_digest", "versions", ["digest"])
    table(
        "currents", sa.Column("seq", WHOLE, primary_key=True), whole("adapter"), whole("number"), of_version(),
        counts=True,
    )  # fmt: skip
    op.create_index("currents_by_adapter", "currents", ["adapter", "seq"])
    table("aliases", whole("adapter"), text("alias"), whole("number"), of_version(), key=("adapter", "alias"))
    table("model_pins", text("model"), whole("pinned"), key=("model",))
    table("model_aliases", text("alias"), text("model"), key=("alias",))
    of_load = text("model"), whole("recipe_version"), text("engine_version"), text("device")
    table(
        "loads", *of_load, whole("resident"), text("seconds"), whole("count"), real("updated"),
        sa.Column("host", WHOLE), whole("margin", "0"), real("margin_seen", "0"), key=LOAD,
    )  # fmt: skip
    of_sleep = text("model"), whole("recipe_version"), text("engine_version"), text("device")
    table(
        "sleeps", *of_sleep, whole("bytes"), whole("host"), text("seconds"), whole("count"), real("updated"), key=LOAD
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"PRAGMA user_version = {FORMAT}")
