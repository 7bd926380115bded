"""Databases of earlier versions are migrated with their contents."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from batches.callbacks.outbox import OutboxTable
from batches.lines import LineTable
from batches.records import BatchState, LineState
from batches.storage.opening import MIGRATIONS, prepare
from batches.storage.tables import VERSION_TABLE
from batches.table import BatchTable
from registry.storage.database import Database
from registry.storage.migration import upgrade
from tenants.storage.opening import open_tables

VERSIONS = sorted(path.name for path in (MIGRATIONS / "versions").glob("0*.py"))
BATCH = sa.text(
    'INSERT INTO batches (id, team, key, surface, endpoint, input_file, created, "window", state, priority, metadata, '
    "names, faults, total) VALUES ('batch_1', 'search', 'key', 'openai', '/v1/embeddings', 'file-1', 1.0, 3600, "
    "'in_progress', 1, '{}', '{\"m\": \"m@1\"}', '[]', 1)"
)
LINE = sa.text(
    'INSERT INTO lines (batch, number, custom_id, model, "offset", length, state) '
    "VALUES ('batch_1', 0, 'a', 'm', 0, 9, 'waiting')"
)


@pytest.fixture
def bare(url: str | None, tmp_path: Path) -> Iterator[Database]:
    """A database without the tables of files and batches."""
    database = open_tables(tmp_path, url)
    yield database
    database.close()


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_a_running_batch_goes_on_after_a_migration(bare: Database, tmp_path: Path, version: str) -> None:
    earlier = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, earlier)
    for newer in VERSIONS[VERSIONS.index(version) + 1 :]:
        (earlier / "versions" / newer).unlink()
    upgrade(bare, earlier, VERSION_TABLE)
    with bare.write() as connection:
        connection.execute(BATCH)
        connection.execute(LINE)
    prepare(bare)
    batches = BatchTable(bare)
    batch = batches.get("batch_1")
    assert batch is not None
    assert (batch.callback, batch.output_seconds, batch.queued, batch.forecast) == ("", None, {}, None)
    assert batches.queued("search") == {}
    assert LineTable(bare).drop("batch_1", LineState.EXPIRED, 2.0) == 1
    ended = batches.get("batch_1")
    assert ended is not None
    assert (ended.state, OutboxTable(bare, b"key").of("batch_1")) == (BatchState.EXPIRED, [])
