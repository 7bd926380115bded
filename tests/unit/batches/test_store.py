"""A running server's store opens the ledger's database at the first file, and writes in the ledger's thread."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from batches.store import BatchStore, BatchTables
from registry.errors import BadRequest, QueueFull, Unavailable
from registry.storage.database import Database
from tenants.ledger import writer
from tenants.ledger.ledger import Ledger
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE
from tests.unit.batches.conftest import FILE, KEY


async def test_the_first_file_begins_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    opened: list[Database] = []

    async def open_database() -> None:
        opened.append(open_tables(tmp_path))
        await ledger.enable(opened[-1])

    store = BatchStore(ledger, tmp_path, open_database, lambda: KEY)
    try:
        assert not await store.opened()
        await store.write(lambda tables: tables.files.create(FILE))
        assert ledger.is_enabled
        assert await store.opened()
        assert store.is_alone
        assert await store.read(lambda tables: tables.files.get("file-1", "search")) == FILE
        assert await BatchStore(ledger, tmp_path, open_database, lambda: KEY).opened(), "a later run opens them"
        assert len(opened) == 1
    finally:
        await ledger.close()
        for database in opened:
            database.close()


async def test_a_team_with_many_reads_does_not_delay_another(tmp_path: Path) -> None:
    ledger, database, gate = Ledger(tmp_path), open_tables(tmp_path), threading.Event()
    await ledger.enable(database)

    async def open_database() -> None:
        raise AssertionError("it is open")

    store = BatchStore(ledger, tmp_path, open_database, lambda: KEY)
    assert await store.read(lambda tables: tables.files.get("file-1", "search"), "search") is None

    def wait(_: BatchTables) -> bool:
        return gate.wait(PATIENCE)

    theirs = [asyncio.create_task(store.read(wait, "greedy")) for _ in range(258)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await store.read(wait, "greedy")
    ours = asyncio.create_task(store.find(lambda tables: tables.files.get("file-1", "search"), None, "search"))
    worker = asyncio.create_task(store.read(lambda tables: tables.batches.unfinished()))
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(PATIENCE):
        assert await ours is None
        assert await worker == []
        await asyncio.gather(*theirs)
    await ledger.close()
    database.close()


async def test_writes_run_in_the_ledgers_thread(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    database = open_tables(tmp_path)
    await ledger.enable(database)

    async def open_database() -> None:
        raise AssertionError("it is open")

    def fail(_: BatchTables) -> str:
        raise BadRequest("no")

    store = BatchStore(ledger, tmp_path, open_database, lambda: KEY)
    assert await store.write(lambda _: threading.current_thread().name) == "ledger"
    assert await store.read(lambda _: threading.current_thread().name) != "ledger"
    with pytest.raises(BadRequest, match="no"):
        await store.write(fail)
    await ledger.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await store.write(fail)
    database.close()


async def test_many_writes_at_once_do_not_wait_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when many lines are stopped together. Only ends that nothing waits for are collected first."""
    monkeypatch.setattr(writer, "GATHER_SECONDS", 10 * PATIENCE)
    ledger = Ledger(tmp_path)
    database = open_tables(tmp_path)
    await ledger.enable(database)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*(ledger.run(partial(int, number)) for number in range(50))) == list(range(50))
    finally:
        await ledger.close()
        database.close()
