"""The ledger's journal stores rows while the database's disk is full, and each is in the ledger once afterwards."""

import asyncio
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.errors import Unavailable
from registry.storage.database import Database
from tenants.costs.prices import PriceList
from tenants.ledger import writer as writer_module
from tenants.ledger.journal import Journal
from tenants.ledger.ledger import Ledger
from tenants.ledger.report import UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.ledger.writer import LedgerWriter
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE
from tests.unit.disks import fill, mount_small
from tests.unit.tenants.conftest import SickTable
from tests.unit.tenants.test_ledger import HOUR, done, entry

SIZE = 1 << 16
LARGE = 1 << 22  # more than any test writes, on however slow a machine


FULL = Unavailable("full", code="disk_full")
"""The error of a full disk, after which SQLite has written nothing."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_tables(tmp_path)
    yield database
    database.close()


@pytest.fixture
def table(database: Database, monkeypatch: pytest.MonkeyPatch) -> SickTable:
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)
    return SickTable(database, "server-1")


def requests(database: Database) -> tuple[int, int]:
    rows = used(database, UsageFilter(0, HOUR))
    return sum(row.requests for row in rows), sum(row.interrupted for row in rows)


def test_journalled_rows_are_read_again_unless_cleared(tmp_path: Path) -> None:
    first, second = replace(entry(), price=PriceList(output=7), score=0.5), entry()
    journal = Journal(tmp_path / "journal", SIZE)
    assert not journal
    assert journal.append([first], [])
    assert journal.append([], [])
    journal.clear()
    assert not journal
    journal.append([first], [])
    journal.append([second], [done(first, 5, 6)])
    journal.close()
    again = Journal(tmp_path / "journal", SIZE)
    assert (again.begun, again.ended) == ([first, second], [done(first, 5, 6)])
    again.clear()
    again.append([second], [])  # as long as the frame that it replaces
    again.close()
    last = Journal(tmp_path / "journal", SIZE)
    assert (last.begun, last.ended) == ([second], [])
    last.close()
    assert (tmp_path / "journal").stat().st_size == SIZE
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def test_a_damaged_frame_ends_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", SIZE)
    first, second = entry(), entry()
    journal.append([first], [])
    end = journal._end
    journal.append([second], [])
    journal.close()
    for damage in (b"\0", struct.pack("<I", 2**31)):
        with open(tmp_path / "journal", "r+b") as file:
            file.seek(end + 9 - len(damage) if len(damage) == 1 else end)
            file.write(damage)
        again = Journal(tmp_path / "journal", SIZE)
        assert again.begun == [first]
        again.close()


def test_a_journal_that_was_cut_short_is_empty(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"ab")
    journal = Journal(tmp_path / "journal", SIZE)
    assert len(journal) == 0
    assert journal.append([entry()], [])
    journal.close()
    again = Journal(tmp_path / "journal", SIZE)
    assert len(again) == 1
    again.close()


def test_the_journal_is_no_larger_than_its_size(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", SIZE)
    while journal.append([one := entry()], [done(one)]):
        pass
    rows = len(journal)
    assert rows > 100
    assert (tmp_path / "journal").stat().st_size == SIZE
    journal.close()
    again = Journal(tmp_path / "journal", SIZE)
    assert len(again) == rows
    again.close()


async def test_a_journal_is_written_to_the_database_after_a_pause(table: SickTable, tmp_path: Path) -> None:
    writer = LedgerWriter(table, journal := Journal(tmp_path / "journal", SIZE))
    await writer.begin(entry())
    assert writer._pause() is None
    journal.append([entry()], [])
    assert writer._pause() == writer_module.RETRY_SECONDS
    await writer.close()


async def test_requests_continue_on_a_full_disk_and_are_in_the_ledger_once(
    table: SickTable, database: Database, tmp_path: Path
) -> None:
    writer = LedgerWriter(table, Journal(tmp_path / "journal", SIZE))
    running = entry()
    await writer.begin(running)
    table.error = FULL
    entries = [entry() for _ in range(20)]
    for one in entries:
        await writer.begin(one)
        writer.end(done(one, 10, 1))
    writer.end(done(running, 10, 1))
    await writer.flush()
    assert writer.journalled == 41
    assert not writer.is_failing
    assert requests(database) == (0, 0)
    table.error = None
    while writer.journalled:  # without further requests
        await asyncio.sleep(0.001)
    assert requests(database) == (21, 0)
    assert table.differences() == []
    await writer.close()


async def test_a_full_journal_refuses_requests_and_loses_nothing(
    table: SickTable, database: Database, tmp_path: Path
) -> None:
    writer = LedgerWriter(table, Journal(tmp_path / "journal", SIZE))
    table.error = FULL
    begun = 0
    while not writer.is_failing:
        one = entry()
        with suppress(Unavailable):
            await writer.begin(one)
            begun += 1
            writer.end(done(one))
    assert begun > 50
    table.error = None
    await writer.begin(entry())
    await writer.flush()
    assert not writer.journalled
    assert not writer.is_failing
    assert requests(database) == (begun, 0)
    assert table.differences() == []
    await writer.close()


async def test_a_database_that_does_not_answer_is_not_journalled(table: SickTable, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Unavailable("locked", code="database_unavailable")

    table.write = broken  # type: ignore[method-assign]
    writer = LedgerWriter(table, Journal(tmp_path / "journal", SIZE))
    with pytest.raises(Unavailable):
        await writer.begin(entry())
    assert not writer.journalled
    await writer.close()


@pytest.mark.parametrize("committed", [False, True])
async def test_a_kill_loses_nothing(committed: bool, table: SickTable, database: Database, tmp_path: Path) -> None:
    """Not even between the commit and the clearing of the journal."""
    ended, running = entry(), entry()
    journal = Journal(tmp_path / "ledger.journal")
    journal.append([ended], [])
    journal.append([running], [done(ended, 5, 6)])
    journal.close()
    if committed:
        table.write([ended, running], [done(ended, 5, 6)])
    ledger = Ledger(tmp_path)
    await ledger.enable(database)
    assert ledger.journalled == 0
    assert requests(database) == (2, 1), "the running request was interrupted"
    assert table.differences() == []
    await ledger.close()


async def test_requests_continue_on_a_really_full_disk(tmp_path: Path) -> None:
    with mount_small(tmp_path / "small", "24m") as small:
        database = open_tables(small)
        ledger = Ledger(small)
        await ledger.enable(database)
        first = entry()
        await ledger.begin(first)
        filler = await asyncio.to_thread(fill, small)
        entries = [entry() for _ in range(200)]
        for one in entries:
            await ledger.begin(one)
            ledger.end(done(one))
        ledger.end(done(first))
        await ledger.flush()
        assert ledger.journalled > 0
        assert not ledger.is_failing
        filler.unlink()
        while ledger.journalled:
            await asyncio.sleep(0.01)
        assert requests(database) == (201, 0)
        assert LedgerTable(database, "server-1").differences() == []
        await ledger.close()
        database.close()


async def test_without_room_for_the_journal_the_ledger_works_and_warns(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    caplog.set_level("WARNING", "roundhouse.tenants")
    ledger = Ledger(tmp_path)
    await ledger.enable(database)
    assert "no room for the ledger's journal" in caplog.text
    one = entry()
    await ledger.begin(one)
    ledger.end(done(one))
    await ledger.close()
    assert requests(database) == (1, 0)


# --- in a fleet: a database that does not answer ---------------------------------------------------------------------
class SilentTable(LedgerTable):
    """A table whose database answers only while `go` is set."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "server-1")
        self.go, self.calls = threading.Event(), 0
        self.go.set()

    def write(self, *rows: Any, **given: Any) -> None:
        self.calls += 1
        self.go.wait()
        super().write(*rows, **given)


@pytest.fixture
def silent(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentTable]:
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(writer_module, "ANSWER_SECONDS", PATIENCE)
    table = SilentTable(database)
    yield table
    table.go.set()


async def test_in_a_fleet_requests_go_on_while_the_database_is_silent(
    silent: SilentTable, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LedgerWriter(silent, Journal(tmp_path / "journal", SIZE), in_fleet=True)
    running = entry()
    await writer.begin(running)
    silent.go.clear()
    monkeypatch.setattr(writer_module, "ANSWER_SECONDS", 0.01)
    entries = [entry() for _ in range(20)]
    for one in entries:
        await writer.begin(one)
        writer.end(done(one, 10, 1))
    writer.end(done(running, 10, 1))
    await writer.flush()
    assert silent.calls == 2, "no further call is made while one hangs"
    assert not writer.is_failing
    with pytest.raises(Unavailable):
        await writer.run(lambda: pytest.fail("the call would block"))
    monkeypatch.setattr(writer_module, "ANSWER_SECONDS", PATIENCE)
    silent.go.set()  # the hanging call commits, too
    while writer.journalled:
        await asyncio.sleep(0.001)
    assert requests(database) == (21, 0)
    assert silent.differences() == []
    await writer.close()


async def test_a_long_journal_is_written_in_parts_without_delaying_new_rows(
    silent: SilentTable, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH", 10)
    writer = LedgerWriter(silent, Journal(tmp_path / "journal", LARGE), in_fleet=True)
    silent.go.clear()
    monkeypatch.setattr(writer_module, "ANSWER_SECONDS", 0.01)
    begun = []
    for _ in range(60):
        begun.append(entry())
        await writer.begin(begun[-1])
        writer.end(done(begun[-1]))
    monkeypatch.setattr(writer_module, "ANSWER_SECONDS", PATIENCE)
    silent.go.set()
    while writer.journalled:
        begun.append(entry())
        await writer.begin(begun[-1])
        writer.end(done(begun[-1]))
    await writer.flush()
    assert silent.calls > 10
    assert requests(database) == (len(begun), 0)
    assert silent.differences() == []
    await writer.close()
    assert not Journal(tmp_path / "journal", LARGE), "its file reads as empty"


async def test_no_rows_are_written_to_a_database_in_an_older_state(
    silent: SilentTable, database: Database, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path, in_fleet=True)
    await ledger.enable(database)
    ledger.refuse_database()
    one = entry()
    await ledger.begin(one)
    ledger.end(done(one))
    await ledger.close()
    assert requests(database) == (0, 0)
    again = Ledger(tmp_path, in_fleet=True)
    await again.enable(database)
    assert requests(database) == (1, 0), "the next start accepts it"
    await again.close()
