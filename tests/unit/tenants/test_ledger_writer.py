"""The ledger's thread: its guarantees with and without an answering database."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from registry.errors import Unavailable
from tenants.ledger import writer as writer_module
from tenants.ledger.ledger import Ledger
from tenants.ledger.report import UsageFilter, used
from tenants.ledger.rows import Entry, Settlement
from tenants.ledger.table import LedgerTable
from tenants.ledger.writer import LedgerWriter
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE, eventually
from tests.unit.tenants.test_ledger import HOUR, done, entry


class Gate:
    """A table whose transactions wait for `go` and fail while `broken`. `seen` are the commits."""

    def __init__(self) -> None:
        self.go, self.entered = threading.Event(), threading.Event()
        self.go.set()
        self.broken = False
        self.seen: list[tuple[list[str], list[str], bool]] = []

    def write(self, begun: Sequence[Entry], ended: Sequence[Settlement], *, again: bool = False) -> None:
        self.entered.set()
        self.go.wait()
        if self.broken:
            raise Unavailable("no")
        self.seen.append(([one.uid for one in begun], [one.entry.uid for one in ended], again))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.001)
    return Gate()


def over(gate: Gate) -> LedgerWriter:
    return LedgerWriter(cast(LedgerTable, gate))


async def test_rows_that_arrive_during_a_transaction_share_the_next_one(gate: Gate) -> None:
    writer = over(gate)
    gate.go.clear()
    first = writer.begin(entry())
    await asyncio.to_thread(gate.entered.wait)
    others = [entry() for _ in range(50)]
    waiting = [writer.begin(one) for one in others]
    for one in others[:20]:
        writer.end(done(one))
    assert not first.done()
    gate.go.set()
    await asyncio.gather(first, *waiting)
    assert [len(begun) for begun, _, _ in gate.seen] == [1, 50]
    assert gate.seen[1][1] == [one.uid for one in others[:20]]
    await writer.close()


async def test_a_flush_returns_after_the_commit(gate: Gate) -> None:
    writer = over(gate)
    one = entry()
    await writer.begin(one)
    writer.end(done(one))
    await writer.flush()
    assert gate.seen[-1][1] == [one.uid]
    await writer.close()


async def test_the_writer_is_failing_until_a_transaction_succeeds(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = over(gate)
    await writer.begin(entry())
    assert not writer.is_failing
    gate.broken = True
    with pytest.raises(Unavailable):
        await writer.begin(entry())
    assert writer.is_failing
    gate.broken = False
    await writer.begin(entry())
    assert not writer.is_failing
    gate.broken = True
    with pytest.raises(Unavailable):
        await writer.begin(entry())
    monkeypatch.setattr(writer_module, "FAILING_SECONDS", 0.0)
    assert not writer.is_failing, "no request has failed lately"
    await writer.close()


async def test_a_failed_transaction_is_repeated_only_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the thread would use a whole core while the database is unavailable."""
    tries: list[str] = []

    class Counted(Gate):
        def write(self, begun: Sequence[Entry], ended: Sequence[Settlement], *, again: bool = False) -> None:
            tries.append("again" if again else "first")
            super().write(begun, ended, again=again)

    monkeypatch.setattr(writer_module, "RETRY_SECONDS", PATIENCE)
    gate = Counted()
    gate.broken = True
    writer = over(gate)
    writer.end(done(entry()))
    await asyncio.to_thread(eventually, lambda: writer.is_failing)
    for _ in range(100):
        await asyncio.to_thread(int)
    assert tries == ["first"]
    await writer.close()


async def test_a_request_without_a_row_is_refused(gate: Gate) -> None:
    writer = over(gate)
    running = entry()
    await writer.begin(running)
    gate.broken = True
    refused = entry()
    with pytest.raises(Unavailable) as error:
        await writer.begin(refused)
    assert (error.value.code, error.value.retry_after) == ("ledger_unavailable", 5)
    writer.end(done(refused))
    writer.end(done(running))
    await writer.flush()
    gate.broken = False
    later = entry()
    await writer.begin(later)
    await writer.flush()
    ended = [uid for _, uids, _ in gate.seen for uid in uids]
    assert ended == [running.uid], "the running request's end is kept, the refused one's dropped"
    assert any(again for _, uids, again in gate.seen if uids)
    assert refused.uid not in [uid for begun, _, _ in gate.seen for uid in begun]
    await writer.close()


async def test_a_failing_ledger_is_logged_once(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """Each refused request had a traceback in the log, which may be on the same full disk."""
    caplog.set_level("WARNING", "roundhouse.tenants")
    writer = over(gate)
    for expected in (1, 2):
        gate.broken = True
        for _ in range(3):
            with pytest.raises(Unavailable):
                await writer.begin(entry())
        assert caplog.text.count("the ledger cannot be written") == expected
        gate.broken = False
        await writer.begin(entry())
    await writer.close()


async def test_the_log_says_that_requests_without_keys_are_not_counted(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    writer = over(gate)
    gate.broken = True
    writer.note(entry())
    await writer.flush()
    assert "the ledger cannot be written: requests are refused or not counted until it can" in caplog.text
    await writer.close()


async def test_the_row_of_a_client_that_leaves_before_the_commit_is_written(gate: Gate) -> None:
    writer = over(gate)
    gate.go.clear()
    one = entry()
    begun = writer.begin(one)
    begun.cancel()
    writer.end(done(one))
    gate.go.set()
    await writer.flush()
    assert [uid for begun_, _, _ in gate.seen for uid in begun_] == [one.uid]
    assert [uid for _, ended, _ in gate.seen for uid in ended] == [one.uid]
    await writer.close()


async def test_a_stop_writes_all_rows(gate: Gate) -> None:
    writer = over(gate)
    entries = [entry() for _ in range(2500)]
    for one in entries:
        writer.begin(one)
        writer.end(done(one))
    await writer.close()
    assert sum(len(ended) for _, ended, _ in gate.seen) == 2500
    assert max(len(begun) + len(ended) for begun, ended, _ in gate.seen) <= writer_module.MAX_BATCH


async def test_a_stop_does_not_wait_for_a_broken_database(gate: Gate) -> None:
    writer = over(gate)
    one = entry()
    await writer.begin(one)
    gate.broken = True
    writer.end(done(one))
    await writer.close()
    assert [uid for _, ended, _ in gate.seen for uid in ended] == []


async def test_a_second_start_interrupts_open_rows_of_the_first(tmp_path: Path) -> None:
    database = open_tables(tmp_path)
    first = Ledger(tmp_path)
    assert not first.is_enabled
    await first.enable(database)
    await first.begin(entry())
    await first.close()
    second = Ledger(tmp_path)
    await second.enable(database)
    (found,) = used(database, UsageFilter(0, HOUR))
    assert (found.requests, found.interrupted) == (1, 1)
    await second.close()
    database.close()
    assert (tmp_path / "server-id").stat().st_mode & 0o777 == 0o600


async def test_a_stop_writes_rows_without_waiters(tmp_path: Path) -> None:
    database = open_tables(tmp_path)
    ledger = Ledger(tmp_path)
    await ledger.enable(database)
    one = entry()
    ledger.note(one)
    ledger.end(done(one), soon=True)
    await ledger.close()
    (found,) = used(database, UsageFilter(0, HOUR))
    assert found.requests == 1
    database.close()


async def test_a_restored_server_interrupts_rows_open_at_its_backup(tmp_path: Path) -> None:
    """It has a new server id, and no other server ends those rows."""
    database = open_tables(tmp_path)
    saved = Ledger(tmp_path)
    await saved.enable(database)
    await saved.begin(entry())
    await saved.close()
    (tmp_path / "server-id").unlink()
    restored = Ledger(tmp_path)
    await restored.enable(database)
    (found,) = used(database, UsageFilter(0, HOUR))
    assert (found.requests, found.interrupted) == (1, 1)
    await restored.close()
    database.close()


async def test_a_start_does_not_interrupt_rows_of_other_servers(tmp_path: Path) -> None:
    for name in ("shared", "a", "b"):
        (tmp_path / name).mkdir()
    database = open_tables(tmp_path / "shared")
    running, starting = Ledger(tmp_path / "a"), Ledger(tmp_path / "b")
    await running.enable(database)
    await running.begin(entry())
    await starting.enable(database)
    (found,) = used(database, UsageFilter(0, HOUR))
    assert found.interrupted == 0
    await running.close()
    await starting.close()
    database.close()


async def test_a_flush_after_the_end_returns(gate: Gate) -> None:
    """The keys may be read while the server stops."""
    writer = over(gate)
    await writer.close()
    async with asyncio.timeout(PATIENCE):
        await writer.flush()


async def test_rows_without_a_waiting_request_are_gathered(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GATHER_SECONDS", PATIENCE)
    writer = over(gate)
    await writer.begin(entry())
    rows = [entry() for _ in range(50)]
    for one in rows:
        writer.note(one)
        writer.end(done(one), soon=True)
        await asyncio.to_thread(int)  # the writer may run
    assert len(gate.seen) == 1
    await writer.flush()
    assert [(len(begun), len(ended)) for begun, ended, _ in gate.seen] == [(1, 0), (50, 50)]
    await writer.close()


async def test_rows_without_a_waiting_request_are_written_soon(gate: Gate) -> None:
    writer = over(gate)
    writer.note(entry())
    await asyncio.to_thread(eventually, lambda: len(gate.seen) == 1)
    writer.note(entry())
    await writer.close()
    assert len(gate.seen) == 2


async def test_a_row_without_a_waiting_request_is_dropped_if_it_cannot_be_written(gate: Gate) -> None:
    writer, one = over(gate), entry()
    gate.broken = True
    writer.note(one)
    await asyncio.to_thread(eventually, lambda: writer.is_failing)
    writer.end(done(one), soon=True)
    gate.broken = False
    await writer.begin(entry())
    assert one.uid not in {uid for begun, ended, _ in gate.seen for uid in (*begun, *ended)}
    await writer.close()
