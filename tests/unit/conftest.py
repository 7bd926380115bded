"""Fixtures for tests in several folders: databases, and imports at first use."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from console import sessions
from fleet import shared_limits
from registry.base import lazy
from registry.storage import database, migration
from registry.storage import postgres as waits
from registry.storage.database import Database
from tenants.ledger import writer
from tests.eventually import PATIENCE
from tests.postgres import create_database, postgres, programs


@pytest.fixture(scope="session", autouse=True)
def migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy new SQLite databases from the first one that the same migrations made, as hundreds of tests need one."""
    migrate, folder = migration._upgrade, tmp_path_factory.mktemp("migrated")

    def upgrade(database: Database, scripts: Path, table: str, to: str) -> None:
        path, made = database.url.database, folder / str(scripts).replace("/", "_")
        is_new = to == "head" and database.is_sqlite and path is not None and _is_empty(path)
        if is_new and made.exists():
            _copy(made, path)
            return
        migrate(database, scripts, table, to)
        if is_new:
            copied = Path(f"{made}-{threading.get_ident()}")
            _copy(path, copied)
            copied.replace(made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "_upgrade", upgrade)
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_databases() -> Iterator[None]:
    """Give databases more time to answer on a busy machine. Tests of one that does not answer set their own limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_limits, "ANSWER_SECONDS", PATIENCE)
        patch.setattr(sessions, "ANSWER_SECONDS", PATIENCE)
        patch.setattr(writer, "ANSWER_SECONDS", PATIENCE)
        patch.setattr(database, "BUSY_SECONDS", PATIENCE)
        patch.setattr(waits, "WRITE_SECONDS", PATIENCE)
        patch.setattr(waits, "READ_SECONDS", PATIENCE)
        patch.setitem(waits.SILENCE, "connect_timeout", int(PATIENCE))
        patch.setattr(waits, "LOCK_SECONDS", int(PATIENCE))
        patch.setattr(waits, "IDLE_SECONDS", int(PATIENCE))
        yield


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return a list of the modules that `registry.base.lazy` imports from now on, and whether in the main thread."""
    imported = list[tuple[str, bool]]()

    def note(name: str) -> None:
        imported.append((name, threading.current_thread() is threading.main_thread()))
        lazy._imported.add(name)

    monkeypatch.setattr(lazy, "_import", note)
    monkeypatch.setattr(lazy, "_imported", set())
    return imported


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: no initdb")
    with postgres() as url:
        yield url


@pytest.fixture(scope="module")
def database_url(postgres_url: str) -> str:
    """Return the URL of an empty PostgreSQL database for the tests of one file."""
    return create_database(postgres_url)


def _is_empty(path: Path | str) -> bool:
    with closing(sqlite3.connect(path)) as there:
        return not there.execute("SELECT 1 FROM sqlite_master").fetchone()


def _copy(path: Path | str, to: Path | str) -> None:
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(to)) as other:
        one.backup(other)
