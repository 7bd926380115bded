"""Brings a room's tables to the present version, with Alembic."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from registry.errors import Conflict
from registry.storage.database import Database

LOCK = 0x726F756E64
"""The number of the lock by which several gateways take turns on PostgreSQL."""


def upgrade(database: Database, scripts: Path, to: str = "head") -> None:
    """Run what is missing of the migrations in a folder up to a revision, all in one transaction.

    Raises Conflict when a newer version has written the database, Unavailable.
    """
    from alembic import command  # 0.1 s
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    with _one_process(database), database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, to)
        except CommandError as error:
            raise Conflict(
                "The database was written by a newer Roundhouse. Start that version, or use another database.",
                code="state_version",
            ) from error


@contextmanager
def _one_process(database: Database) -> Iterator[None]:
    """Two that turn SQLite's log on at once: one of them is refused without waiting, so they wait here."""
    if not database.is_sqlite or not database.url.database:
        yield
        return
    handle = os.open(Path(database.url.database).parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
