"""The tables of shared names, in the fleet's schema."""

from dataclasses import dataclass
from pathlib import Path

from registry.state.shared.revision import Revision
from registry.state.shared.tables import VERSION_TABLE
from registry.state.tables import VERSION_TABLE as STATE_VERSION_TABLE
from registry.storage.database import Database, url_of
from registry.storage.migration import upgrade

MIGRATIONS = Path(__file__).parent / "migrations"
STATE_MIGRATIONS = Path(__file__).parents[1] / "migrations"


@dataclass(frozen=True, slots=True)
class SharedTables:
    """Open tables, which `registry.state.database.State` closes."""

    database: Database
    revision: Revision


def open_shared(url: str, schema: str) -> SharedTables:
    """Open the tables, and create or migrate them. Raises Conflict if a newer version wrote them, Unavailable."""
    database = Database(url_of(url), schema=schema)
    with database.closing_on_error():
        database.make_schema()
        upgrade(database, STATE_MIGRATIONS, STATE_VERSION_TABLE)
        upgrade(database, MIGRATIONS, VERSION_TABLE)
    database.set_timeouts()
    return SharedTables(database, Revision(schema))
