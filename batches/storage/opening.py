"""Creates and migrates these tables in the ledger's database, which `tenants.storage.opening` opens."""

from pathlib import Path

from batches.storage.tables import VERSION_TABLE
from registry.storage.database import Database
from registry.storage.migration import revision, upgrade

MIGRATIONS = Path(__file__).parent / "migrations"


def has_tables(database: Database) -> bool:
    """Whether a file or batch was ever stored. Raises Unavailable."""
    return revision(database, VERSION_TABLE) is not None


def prepare(database: Database) -> None:
    """Create or migrate the tables.

    Raises Conflict for a database of a newer version, Unavailable.
    """
    upgrade(database, MIGRATIONS, VERSION_TABLE)
