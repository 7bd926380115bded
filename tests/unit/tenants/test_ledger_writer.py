"""The ledger's thread: what it promises while the database answers, and while it does not."""

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
    """A table whose transactions wait for `go`, and fail as long as `broken`; `seen` is what was committed."""

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


async def test_what_comes_meanwhile_is_one_transaction(gate: Gate) -> None:
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


async def test_written_is_a_promise(gate: Gate) -> None:
    writer = over(gate)
    one = entry()
    await writer.begin(one)
    writer.end(done(one))
    await writer.flush()
    assert gate.seen[-1][1] == [one.uid]
    await writer.close()


async def test_it_fails_until_a_transaction_succeeds(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_cannot_be_written_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the thread would take a whole core for as long as the database is away."""
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


async def test_nothing_runs_that_cannot_be_reported(gate: Gate) -> None:
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
    assert ended == [running.uid], "its end was kept; the end of what never began is none"
    assert any(again for _, uids, again in gate.seen if uids)
    assert refused.uid not in [uid for begun, _, _ in gate.seen for uid in begun]
    await writer.close()


async def test_that_it_cannot_be_written_is_logged_once(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """Each request that was refused had its traceback in the log, which may lie on the same full disk."""
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


async def test_a_client_that_leaves_before_the_commit(gate: Gate) -> None:
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


async def test_a_stop_writes_what_has_come(gate: Gate) -> None:
    writer = over(gate)
    entries = [entry() for _ in range(2500)]
    for one in entries:
        writer.begin(one)
        writer.end(done(one))
    await writer.close()
    assert sum(len(ended) for _, ended, _ in gate.seen) == 2500
    assert max(len(begun) + len(ended) for begun, ended, _ in gate.seen) <= writer_module.MAX_BATCH


async def test_a_stop_does_not_wait_for_a_database_that_is_gone(gate: Gate) -> None:
    writer = over(gate)
    one = entry()
    await writer.begin(one)
    gate.broken = True
    writer.end(done(one))
    await writer.close()
    assert [uid for _, ended, _ in gate.seen for uid in ended] == []


async def test_a_second_start_ends_what_the_first_left(tmp_path: Path) -> None:
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


async def test_a_restored_server_ends_what_was_under_way_at_its_backup(tmp_path: Path) -> None:
    """It has a name of its own, and nobody else ends those rows."""
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


async def test_a_start_leaves_other_servers_of_a_shared_file_alone(tmp_path: Path) -> None:
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


async def test_after_its_end_no_one_waits_for_it(gate: Gate) -> None:
    """A look at the keys that comes while the server stops."""
    writer = over(gate)
    await writer.close()
    async with asyncio.timeout(PATIENCE):
        await writer.flush()


async def test_rows_that_no_request_waits_for_are_gathered(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_rows_that_no_request_waits_for_are_written_soon_without_any_other(gate: Gate) -> None:
    writer = over(gate)
    writer.note(entry())
    await asyncio.to_thread(eventually, lambda: len(gate.seen) == 1)
    writer.note(entry())
    await writer.close()
    assert len(gate.seen) == 2


async def test_a_row_that_no_request_waits_for_is_given_up_with_its_end(gate: Gate) -> None:
    writer, one = over(gate), entry()
    gate.broken = True
    writer.note(one)
    await asyncio.to_thread(eventually, lambda: writer.is_failing)
    writer.end(done(one), soon=True)
    gate.broken = False
    await writer.begin(entry())
    assert one.uid not in {uid for begun, ended, _ in gate.seen for uid in (*begun, *ended)}
    await writer.close()
