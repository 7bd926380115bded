"""Empty databases of each kind, and their tables of teams and keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.storage.database import Database
from tenants.keys.table import KeyTable
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.fakes.clocks import Clock
from tests.postgres import create_database

PEPPER = b"p" * 64


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Return a URL of a database without tables unless the test uses `database`, or None for SQLite in `tmp_path`."""
    if request.param == "sqlite":
        return None
    has_tables = "database" in request.fixturenames
    model = request.getfixturevalue("migrated_postgres") if has_tables else "template1"
    return create_database(request.getfixturevalue("postgres_url"), model)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of a database with migrated tables, of which each test gets a copy."""
    database = open_tables(tmp_path_factory.mktemp("migrated"), create_database(postgres_url))
    database.close()
    return str(database.url.database)


@pytest.fixture
def database(url: str | None, tmp_path: Path) -> Iterator[Database]:
    database = open_tables(tmp_path, url)
    yield database
    database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture
def table(database: Database, clock: Clock) -> KeyTable:
    return KeyTable(database, PEPPER, clock)


class SickTable(LedgerTable):
    """A table that cannot be written while `error` is set."""

    error: Exception | None = None

    def write(self, *rows: Any, **given: Any) -> None:
        if self.error is not None:
            raise self.error
        super().write(*rows, **given)
