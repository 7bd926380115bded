"""Where the tables of this room are."""

from pathlib import Path

from registry.storage.database import SQLITE, Database, url_of
from registry.storage.migration import upgrade

FILE = "tenants.db"
"""Beside the registry's state.db, not in it: what is written at each request must not keep a registration waiting."""
MIGRATIONS = Path(__file__).parent / "migrations"


def is_there(data_dir: Path, url: str | None) -> bool:
    """Has somebody made them? Without touching a database."""
    return url is not None or (data_dir / FILE).exists()


def open_tables(data_dir: Path, url: str | None = None) -> Database:
    """Opened, made where they are missing, and brought up to date. url: None for SQLite in the data directory.

    Raises BadRequest for a wrong address, Conflict for a newer version's database, Unavailable.
    """
    database = Database(url_of(url or f"{SQLITE}:///{(data_dir / FILE).absolute()}"))
    try:
        upgrade(database, MIGRATIONS)
    except BaseException:
        database.close()
        raise
    return database
