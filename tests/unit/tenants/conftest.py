"""An empty database of each kind, and the tables of teams and keys in it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.storage.database import Database, url_of
from tenants.keys.table import KeyTable
from tenants.ledger.rows import Entry, Rider, Settlement
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables

PEPPER = b"p" * 64
_NUMBERS = itertools.count()


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """As settings give it; None for SQLite in `tmp_path`."""
    if request.param == "sqlite":
        return None
    server: str = request.getfixturevalue("postgres_url")
    name = f"tests_{next(_NUMBERS)}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url_of(server).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def database(url: str | None, tmp_path: Path) -> Iterator[Database]:
    database = open_tables(tmp_path, url)
    yield database
    database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(database: Database, clock: Clock) -> KeyTable:
    return KeyTable(database, PEPPER, clock)


class SickTable(LedgerTable):
    """Cannot be written while `error` is set."""

    error: Exception | None = None

    def write(
        self,
        begun: Sequence[Entry],
        ended: Sequence[Settlement],
        *,
        again: bool = False,
        riders: Mapping[str, Rider] | None = None,
    ) -> None:
        if self.error is not None:
            raise self.error
        super().write(begun, ended, again=again, riders=riders or {})
