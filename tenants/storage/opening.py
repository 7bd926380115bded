"""Opens the database of teams."""

from pathlib import Path

from registry.storage.database import Database, file_url, url_of
from registry.storage.migration import upgrade
from tenants.key_settings import FILE
from tenants.storage.tables import VERSION_TABLE

MIGRATIONS = Path(__file__).parent / "migrations"


def open_tables(data_dir: Path, url: str | None = None) -> Database:
    """Open the database, creating and migrating it if needed. url: None for SQLite in the data directory.

    Raises BadRequest for a wrong URL, Conflict for a database of a newer version, Unavailable.
    """
    database = Database(url_of(url) if url else file_url(data_dir / FILE))
    with database.closing_on_error():
        upgrade(database, MIGRATIONS, VERSION_TABLE)
    return database
