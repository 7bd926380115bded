"""Upgrade a package's tables to the current version with Alembic.

| version of the tables      | what this version does              |
|----------------------------|-------------------------------------|
| older                      | runs the missing migrations         |
| the same                   | uses them                           |
| newer, with additions only | uses them and ignores the additions |
| newer                      | refuses them                        |

A migration whose additions may be ignored by older code declares `least`: the earliest revision whose code may still
use the tables. The latest of these is stored next to the revision in Alembic's table. So servers of two versions can
run on one database, and one of the older version can be restarted.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import sqlalchemy as sa

from registry.errors import Conflict, Unavailable
from registry.storage.database import Database

ENVIRONMENT = Path(__file__).parent
"""The folder with `env.py`, by which Alembic runs the migrations of every package."""
LEAST = "least"
LOCK = 0x726F756E64
"""Number of the advisory lock that serialises migrations of several gateways on PostgreSQL."""


def upgrade(database: Database, scripts: Path, table: str, to: str = "head") -> None:
    """Run the missing migrations of a folder up to a revision, in one transaction.

    table: where Alembic keeps the revision. Raises Conflict for a newer version's tables, Unavailable.
    """
    path = database.url.database
    with alone(Path(path).parent) if database.is_sqlite and path else nullcontext():
        if to == "head" and can_use(database, scripts, table):  # so most starts do not import Alembic
            return
        _upgrade(database, scripts, table, to)


def can_use(database: Database, scripts: Path, table: str) -> bool:
    """Return whether the tables are of this version, or of a newer one with additions only."""
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
    for option, folder in (("script_location", ENVIRONMENT), ("version_locations", scripts / "versions")):
        config.set_main_option(option, str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")  # which no path contains
    config.attributes["table"] = table
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("SET LOCAL lock_timeout = 0"))  # another server's migration may take minutes
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


def refuse_newer(database: Database, scripts: Path, table: str) -> None:
    """Raise Conflict for tables of a newer version that this one cannot use. Changes nothing."""
    current = revision(database, table)
    if current is not None and current > newest(scripts) and not can_use(database, scripts, table):
        raise newer(database)


def newer(database: Database) -> Conflict:
    """Return the error for a database that a newer version wrote."""
    return Conflict(
        f"The database {database.url.database} was written by a newer Roundhouse. Start that version, or restore an "
        "older backup: roundhouse restore.",
        code="state_version",
    )


def newest(scripts: Path) -> str:
    """Return the last revision in a folder of numbered migrations."""
    return max(file.name[:4] for file in (scripts / "versions").glob("[0-9]*.py"))


def revision(database: Database, table: str) -> str | None:
    """Return the database's revision, or None if Alembic has not used it yet."""
    with database.read() as connection:
        if not sa.inspect(connection).has_table(table):
            return None
        return connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(table))).scalar()


def _least(database: Database, table: str) -> str | None:
    """Return the earliest revision whose code may use the tables, or None if unknown."""
    with database.read() as connection:
        if LEAST not in {column["name"] for column in sa.inspect(connection).get_columns(table)}:
            return None
        return connection.execute(sa.select(sa.column(LEAST)).select_from(sa.table(table))).scalar()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time turn on SQLite's log, because two at once get an error. Raises Unavailable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise Unavailable(
                f"{folder} cannot be locked: {error.strerror}. Name a data directory on a local disk: --data-dir.",
                code="database_unavailable",
            ) from error
        yield
    finally:
        os.close(handle)
