"""Routers get tables of their own; before, they were adapters on the base "@routers"."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"
FORMAT = 6
BASE = "@routers"
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
COPIES = (
    "INSERT INTO router_numbers (name, last) SELECT name, last FROM numbers WHERE base = :base",
    "INSERT INTO routers (id, name, created) SELECT id, name, created FROM adapters WHERE base = :base",
    "INSERT INTO router_versions (router, number, digest, created, bytes, source) "
    "SELECT adapter, number, digest, created, bytes, source FROM versions WHERE adapter IN (SELECT id FROM routers)",
    "INSERT INTO router_currents (seq, router, number) "
    "SELECT seq, adapter, number FROM currents WHERE adapter IN (SELECT id FROM routers)",
    "INSERT INTO router_aliases (router, alias, number) "
    "SELECT adapter, alias, number FROM aliases WHERE adapter IN (SELECT id FROM routers)",
    "DELETE FROM aliases WHERE adapter IN (SELECT id FROM routers)",
    "DELETE FROM currents WHERE adapter IN (SELECT id FROM routers)",
    "DELETE FROM versions WHERE adapter IN (SELECT id FROM routers)",
    "DELETE FROM adapters WHERE base = :base",
    "DELETE FROM numbers WHERE base = :base",
    "DELETE FROM digests WHERE digest IN (SELECT digest FROM router_versions) "
    "AND digest NOT IN (SELECT digest FROM versions)",
)


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def whole(name: str) -> sa.Column[int]:
    return sa.Column(name, WHOLE, nullable=False, autoincrement=False)


def table(name: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...] = (), counts: bool = False) -> None:
    keys = [sa.PrimaryKeyConstraint(*key)] if key else []
    op.create_table(name, *parts, *keys, sqlite_strict=True, sqlite_autoincrement=counts)


def of_version() -> sa.ForeignKeyConstraint:
    columns = ["router_versions.router", "router_versions.number"]
    return sa.ForeignKeyConstraint(["router", "number"], columns, ondelete="CASCADE")


def _create_tables() -> None:
    row_id, created = sa.Column("id", WHOLE, primary_key=True), sa.Column("created", REAL, nullable=False)
    table("router_numbers", text("name"), whole("last"), key=("name",))
    table("routers", row_id, text("name"), created, sa.UniqueConstraint("name"))
    table(
        "router_versions", whole("router"), whole("number"), text("digest"),
        sa.Column("created", REAL, nullable=False), whole("bytes"), text("source"),
        sa.ForeignKeyConstraint(["router"], ["routers.id"], ondelete="CASCADE"), key=("router", "number"),
    )  # fmt: skip
    op.create_index("router_versions_by_digest", "router_versions", ["digest"])
    seq = sa.Column("seq", WHOLE, primary_key=True)
    table("router_currents", seq, whole("router"), whole("number"), of_version(), counts=True)
    op.create_index("router_currents_by_router", "router_currents", ["router", "seq"])
    table("router_aliases", whole("router"), text("alias"), whole("number"), of_version(), key=("router", "alias"))


def upgrade() -> None:
    connection = op.get_bind()
    _create_tables()
    for statement in COPIES:
        connection.execute(sa.text(statement), {"base": BASE} if ":base" in statement else {})
    if connection.dialect.name == "sqlite":
        op.execute(f"PRAGMA user_version = {FORMAT}")
        return
    for table, column in (("routers", "id"), ("router_currents", "seq")):
        connection.execute(
            sa.text(
                f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), coalesce(max({column}), 1), "
                f"max({column}) IS NOT NULL) FROM {table}"
            )
        )
