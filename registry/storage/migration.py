"""Bring a room's tables to the present version with Alembic.

| the tables are of                        | this version                                         |
|------------------------------------------|------------------------------------------------------|
| an older version                         | runs the missing migrations                          |
| this one                                 | uses them                                            |
| a newer one, which only added to them    | uses them as they are: what was added it leaves out  |
| a newer one                              | refuses them                                         |

A migration that only adds, and whose additions may be left out by those who write, says so by `least`: the earliest
revision whose code may use the tables from then on. The latest of these stands beside the revision in Alembic's table.
So servers of two versions run on one database, and one of the older version can start again.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import sqlalchemy as sa

from registry.errors import Conflict
from registry.storage.database import Database

LEAST = "least"
LOCK = 0x726F756E64
"""The number of the lock by which several gateways take turns on PostgreSQL."""


def upgrade(database: Database, scripts: Path, table: str, to: str = "head") -> None:
    """Run the missing migrations of a folder up to a revision, in one transaction.

    table: where Alembic keeps the revision. Raises Conflict for a newer version's tables, Unavailable.
    """
    path = database.url.database
    with alone(Path(path).parent) if database.is_sqlite and path else nullcontext():
        if to == "head" and can_use(database, scripts, table):  # most starts do not even import Alembic
            return
        _upgrade(database, scripts, table, to)


def can_use(database: Database, scripts: Path, table: str) -> bool:
    """Whether the tables are of this version, or of a newer one that only added to them."""
    current, own = revision(database, table), newest(scripts)
    return current == own or (current is not None and current > own and (_least(database, table) or current) <= own)


def _upgrade(database: Database, scripts: Path, table: str, to: str) -> None:
    # Alembic imports Mako, which imports all of Pygments' lexers (5 MiB) to colour templates; migrations have none
    sys.modules.setdefault("mako.ext.pygmentplugin", None)  # type: ignore[arg-type]
    from alembic import command  # 0.1 s
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("SET LOCAL lock_timeout = 0"))  # another one's steps may take minutes
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, to)
        except CommandError as error:
            raise newer(database) from error
        is_there = LEAST in {column["name"] for column in sa.inspect(connection).get_columns(table)}
        if not is_there:
            connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {LEAST} VARCHAR(32)"))
        steps = ScriptDirectory.from_config(config).walk_revisions("base", to)
        least = max(str(getattr(step.module, LEAST, step.revision)) for step in steps)
        connection.execute(sa.update(sa.table(table, sa.column(LEAST))).values({LEAST: least}))


def newer(database: Database) -> Conflict:
    """The error for a database that a newer version wrote."""
    return Conflict(
        f"The database {database.url.database} was written by a newer Roundhouse. Start that version, or go back to a "
        "backup of before: roundhouse restore.",
        code="state_version",
    )


def newest(scripts: Path) -> str:
    """The last revision of a folder: they are numbered."""
    return max(file.name[:4] for file in (scripts / "versions").glob("[0-9]*.py"))


def revision(database: Database, table: str) -> str | None:
    """The database's revision; None: Alembic has never seen it."""
    with database.read() as connection:
        if not sa.inspect(connection).has_table(table):
            return None
        return connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(table))).scalar()


def _least(database: Database, table: str) -> str | None:
    """The earliest revision whose code may use the tables; None: it is not known."""
    with database.read() as connection:
        if LEAST not in {column["name"] for column in sa.inspect(connection).get_columns(table)}:
            return None
        return connection.execute(sa.select(sa.column(LEAST)).select_from(sa.table(table))).scalar()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time turn on SQLite's log: two at once get an error."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
