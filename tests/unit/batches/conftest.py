"""The tables of batches in an empty database of each kind."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from batches.callbacks.outbox import OutboxTable
from batches.callbacks.webhooks import WebhookTable
from batches.files import FileTable
from batches.lines import LineTable
from batches.records import BatchRecord, FileRecord, NewLine
from batches.runners import RateTable, RunnerTable
from batches.storage.opening import prepare
from batches.store import BatchTables
from batches.table import BatchTable
from registry.storage.database import Database
from tenants.storage.opening import open_tables
from tests.postgres import create_database
from tests.unit.tenants.conftest import url

__all__ = ["url"]

FILE = FileRecord("file-1", "search", "in.jsonl", "batch", 100, 1.0)
BATCH = BatchRecord("batch_1", "search", "key", "openai", "/v1/chat/completions", "file-1", 10.0, 86_400)
KEY = b"makes secrets of webhooks"
_NUMBERS = itertools.count(2)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of a database with migrated tables. Each test gets a copy."""
    return str(_migrated(tmp_path_factory.mktemp("migrated"), create_database(postgres_url)).database)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of such a database on SQLite."""
    return Path(str(_migrated(tmp_path_factory.mktemp("migrated"), None).database))


def _migrated(folder: Path, url: str | None) -> sa.URL:
    database = open_tables(folder, url)
    prepare(database)
    database.close()
    return database.url


@pytest.fixture
def database(url: str | None, tmp_path: Path, migrated_sqlite: Path) -> Iterator[Database]:
    if url is None:
        shutil.copyfile(migrated_sqlite, tmp_path / migrated_sqlite.name)
    database = open_tables(tmp_path, url)
    prepare(database)
    yield database
    database.close()


@pytest.fixture
def tables(database: Database) -> BatchTables:
    return BatchTables(
        FileTable(database), BatchTable(database), LineTable(database), RunnerTable(database, "server-a"),
        RateTable(database, "server-a"), OutboxTable(database, KEY), WebhookTable(database, KEY),
    )  # fmt: skip


@pytest.fixture
def start(tables: BatchTables) -> Callable[..., BatchRecord]:
    """Return a function that creates and starts a batch whose lines ask for these models."""

    def start(*models: str, batch: BatchRecord = BATCH) -> BatchRecord:
        if tables.files.get(batch.input_file, batch.team) is None:
            tables.files.create(replace(FILE, id=batch.input_file, team=batch.team))
        made = tables.batches.create(batch)
        assert made is not None
        lines = [NewLine(number, f"id-{number}", model, number * 10, 10) for number, model in enumerate(models)]
        assert tables.lines.add(made.id, lines)
        assert tables.batches.start(made.id, 11.0)
        started = tables.batches.get(made.id)
        assert started is not None
        return started

    return start
