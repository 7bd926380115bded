"""Batch lines from claim to end over a scripted engine, and the ledger's sums."""

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batches.records import BatchState, Forecast, LineCounts, LineState
from batches.runners import RunnerTable
from batches.store import BatchStore
from batches.work import ends, forecast, forecaster, policy, worker
from batches.work.policy import LostWork
from batches.work.running import LineAttempt
from models.messages import Chunk, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.catalog import ResolvedName
from registry.errors import EngineFailed, Unauthorized, Unavailable
from runtime.gateway.context import RequestContext
from runtime.gateway.local import rooms
from runtime.http.batches.lines import batch_worker
from runtime.http.routes import ENDPOINTS
from tenants.caller import Caller, ServiceClass
from tenants.keys.keyring import Keyring, TeamEntry
from tenants.ledger.table import LedgerTable
from tenants.ledger.writer import LedgerWriter
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.records import Kind, Limit
from tests.eventually import PATIENCE
from tests.unit.http.answering import answer as answer_request
from tests.unit.http.batches.bench import BATCH, CALLER, Bench, answer, body, echo, other_batch
from tests.unit.http.batches.conftest import BatchServer


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(ends, "REFUSED_PAUSE", 0.01)
    monkeypatch.setattr(ends, "LONGEST_REFUSED", 0.01)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(
        worker, "BUDGET_SECONDS", 0.5
    )  # long enough for several rounds, each of which says why the batch waits


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.open()
    yield bench
    await bench.close()


def text(result: bytes | None) -> Any:
    return json.loads(result or b"null")


async def test_each_line_is_answered_once_and_the_ledger_agrees(bench: Bench) -> None:
    bodies = [body(f"t{number}") for number in range(100)]
    bodies[7], bodies[8] = body("x", "nobody"), body("x", stream=True)
    await bench.create(bodies)
    batch = await bench.until_final()
    assert (batch.state, batch.counts) == (BatchState.COMPLETED, LineCounts(100, 98, 2))
    lines = await bench.results()
    assert [line.number for line in lines] == list(range(100))
    for line in lines:
        if line.number in (7, 8):
            continue
        assert (line.status, text(line.result)) == (200, {"text": f"t{line.number}"})
        assert (line.served, line.adapter, line.attempts, line.code) == ("chat@rev", "", 1, "")
    assert (lines[7].status, lines[7].code, lines[7].attempts) == (404, "model_not_found", 0)
    assert (lines[8].status, text(lines[8].result)["error"]["param"]) == (400, "stream")
    assert len({line.uid for line in lines}) == 99, "each has its own row, except for the two without an attempt"
    assert len({line.request for line in lines}) == 100
    assert bench.rows() == {("settled", "done", 7): 98}
    assert (batch.usage.input, batch.usage.cached, batch.usage.output) == (98 * 5, 98, 98 * 2)
    assert bench.cost() == 98 * (5 + 2 * 2) * 10**6
    assert bench.differences() == []
    assert len(bench.link.requests) == 98
    assert not bench.gateway.gateway.services.console.history.rows(), "only interactive requests are listed"
    request = bench.link.requests[0]
    assert isinstance(request, HttpCall)
    assert request.priority == 2


async def test_names_keep_the_meaning_of_the_batchs_creation(bench: Bench) -> None:
    pinned = bench.gateway.line_rooms.pin(["chat", "nobody"], CALLER)
    assert pinned == {"chat": "chat@1"}
    await bench.create([body("t"), body("u", "nobody")], names={**pinned, "alias": "chat@1"})
    batch = await bench.until_final()
    assert batch.counts == LineCounts(2, 1, 1)
    await bench.create([body("t", "alias")], other_batch("b"), names={"alias": "chat@1"})
    assert (await bench.until_final("b")).counts == LineCounts(1, 1)
    requests = [request for request in bench.link.requests if isinstance(request, HttpCall)]
    assert [request.display_name for request in requests] == ["chat", "alias"], "answers have the line's own name"
    await bench.create([body("t")], other_batch("c"), names={"chat": "chat@7"})
    await bench.until_final("c")
    [line] = await bench.results("c")
    assert (line.status, line.code) == (404, "model_version_not_found")


async def test_only_a_few_more_lines_than_places_are_in_the_queue(bench: Bench) -> None:
    queue = bench.gateway.queues["chat"]
    bench.link.gate.clear()
    await bench.create([body("t") for _ in range(100)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32 or bench.worker.running < 40 or queue.waiting < 8:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # no more arrive
    assert (queue.running, queue.waiting) == (32, 8)
    assert bench.worker.running == 40
    bench.link.gate.set()
    await bench.until_final()


async def test_a_failed_line_is_repeated_and_charged_once(bench: Bench) -> None:
    fails = {"t1": 2, "t2": 9}

    def script(request: HttpCall) -> Any:
        content = json.loads(request.body)["messages"][0]["content"]
        if fails.get(content, 0):
            fails[content] -= 1
            part = [ResponseStart(status=200, content_type="application/json"), Chunk(data=b"{")]
            return [*part, EngineFailed("no") if fails[content] % 2 else Unavailable("no", code="restarting")]
        return answer(content)

    bench.link.script = script
    await bench.create([body(f"t{number}") for number in range(3)])
    batch = await bench.until_final()
    assert batch.counts == LineCounts(3, 2, 1)
    lines = await bench.results()
    assert [(line.status, line.attempts) for line in lines] == [(200, 1), (200, 3), (503, 5)]
    assert text(lines[2].result)["error"]["message"] == "no"
    assert lines[2].code == "restarting"
    assert batch.usage.input == 10
    rows = bench.rows()
    assert rows["settled", "done", 7] == 2
    assert sum(count for (_, _, tokens), count in rows.items() if not tokens) == 7
    assert bench.differences() == []


async def test_a_batch_sums_up_the_reasoning_of_its_answers(bench: Bench) -> None:
    """As Chat Completions and Responses report it. A count beyond the answer's tokens (2) is wrong."""
    usages: dict[str, Any] = {
        "chat": {"completion_tokens_details": {"reasoning_tokens": 1}},
        "responses": {"output_tokens_details": {"reasoning_tokens": 2}},
        "too many": {"completion_tokens_details": {"reasoning_tokens": 2**70}},
        "negative": {"completion_tokens_details": {"reasoning_tokens": -1}},
        "not a number": {"completion_tokens_details": {"reasoning_tokens": "1"}},
        "none": {"completion_tokens_details": None, "output_tokens_details": {"reasoning_tokens": None}},
    }

    def script(request: HttpCall) -> Any:
        content = json.loads(request.body)["messages"][0]["content"]
        data = json.dumps({"text": '"reasoning_tokens"', "usage": usages[content]}).encode()
        start, _, end = answer(content)
        return [start, Chunk(data=data), end]

    bench.link.script = script
    await bench.create([body(kind) for kind in usages])
    batch = await bench.until_final()
    assert batch.counts == LineCounts(6, 6)
    assert (batch.usage.output, batch.usage.reasoning) == (6 * 2, 1 + 2 + 2)


async def test_an_error_of_the_engine_is_repeated(bench: Bench) -> None:
    statuses = iter([500, 429, 400])
    bench.link.script = lambda _: [
        ResponseStart(status=next(statuses), content_type="application/json"),
        Chunk(data=b'{"error":{"code":"too_long"}}'),
        ResponseEnd(usage=Usage()),
    ]
    await bench.create([body("t")])
    batch = await bench.until_final()
    assert batch.counts == LineCounts(1, 0, 1)
    [line] = await bench.results()
    assert (line.status, line.code, line.attempts) == (400, "too_long", 3)
    assert bench.rows() == {("settled", "failed", 0): 2, ("settled", "refused", 0): 1}


async def test_lines_of_a_dead_engine_run_again_one_at_a_time(bench: Bench) -> None:
    """One line kills the engine together with the others in it. In the end only this line has failed."""
    running: set[str] = set()
    together: list[set[str]] = []

    def look(request: HttpCall) -> None:
        content = json.loads(request.body)["messages"][0]["content"]
        running.add(content)
        together.append(set(running))

    def script(request: HttpCall) -> Any:
        content = json.loads(request.body)["messages"][0]["content"]
        running.discard(content)
        first = len(bench.link.requests) <= 5
        if content == "killer" or first:
            return [EngineFailed("It died.", code="engine_died")]
        return answer(content)

    bench.link.look, bench.link.script = look, script
    await bench.create([body(content) for content in ("a", "b", "killer", "c", "d")])
    batch = await bench.until_final()
    assert batch.counts == LineCounts(5, 4, 1)
    lines = await bench.results()
    assert [(line.status, line.deaths) for line in lines] == [(200, 1), (200, 1), (500, 3), (200, 1), (200, 1)]
    assert lines[2].code == "engine_died"
    assert all(len(one) == 1 for one in together[5:])


async def test_cancelling_a_batch_stops_its_running_lines(bench: Bench) -> None:
    bench.link.free = 0
    bench.link.gate.clear()
    await bench.create([body("t") for _ in range(50)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32:
            await asyncio.sleep(0.01)
    await bench.store.write(lambda tables: tables.batches.cancel(BATCH.id, time.time()))
    bench.worker.wake()
    batch = await bench.until_final()
    assert (batch.state, batch.counts) == (BatchState.CANCELLED, LineCounts(50, 0, 0, 50))
    assert len(bench.link.cancelled) == 32
    assert bench.worker.running == 0
    assert {state for state, _, tokens in bench.rows() if not tokens} == {"settled"}
    assert bench.differences() == []


async def test_at_the_end_of_its_window_a_batch_keeps_its_answers(bench: Bench) -> None:
    calls = 0

    def script(request: HttpCall) -> Any:
        nonlocal calls
        calls += 1
        if calls > 10:
            bench.link.gate.clear()
        return echo(request)

    bench.link.script, bench.link.free = script, 0
    await bench.create([body("t") for _ in range(40)], other_batch("b", created=time.time() - 99, window=100))
    batch = await bench.until_final("b")
    assert batch.state is BatchState.EXPIRED
    assert batch.counts.expired
    assert batch.counts.completed + batch.counts.expired == 40
    lines = await bench.results("b")
    assert sum(line.state is LineState.EXPIRED for line in lines) == batch.counts.expired
    assert bench.rows()["settled", "done", 7] == batch.counts.completed


@pytest.mark.parametrize("shift", [3600.0, -3600.0], ids=["ahead", "back"])
async def test_setting_the_clock_runs_no_line_twice(bench: Bench, shift: float) -> None:
    """Pauses after failures end as planned, and the end of a window follows the clock."""
    failed = False

    def script(request: HttpCall) -> Any:
        nonlocal failed
        if not failed:
            failed, bench.shift = True, shift
            return [Unavailable("no", code="restarting")]
        return echo(request)

    bench.link.script = script
    await bench.create([body(f"t{number}") for number in range(100)], replace(BATCH, created=time.time(), window=9000))
    assert (await bench.until_final()).counts == LineCounts(100, 100)
    assert len(bench.link.requests) == 101
    assert bench.rows()["settled", "done", 7] == 100
    bench.link.gate.clear()
    await bench.create([body("t")], other_batch("b", created=time.time() + shift - 99, window=100))
    assert (await bench.until_final("b")).state is BatchState.EXPIRED


async def test_a_late_batch_runs_as_interactive_but_at_the_batch_price(bench: Bench) -> None:
    """Also if its key may have no higher class than `batch`."""
    lowest = ServiceClass.BATCH
    bench.rights = lambda _: replace(CALLER, ceiling=lowest, service_class=lowest)
    late = other_batch("b", created=time.time() - 97_000, window=100_000)
    await bench.create([body("t", **{"x-tier": "critical"})], late)
    batch = await bench.until_final("b")
    assert batch.counts == LineCounts(1, 1)
    assert [request.priority for request in bench.link.requests] == [1], "never critical, even if the line says so"
    assert bench.cost() == (5 + 2 * 2) * 10**6


async def test_a_batch_with_little_time_gets_half_of_the_places(bench: Bench) -> None:
    """So many of its lines run as interactive, and the others as batch."""
    bench.link.gate.clear()
    await bench.create([body("t") for _ in range(60)], other_batch("b", created=time.time() - 93000, window=100000))
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32:
            await asyncio.sleep(0.01)
    classes = Counter(request.priority for request in bench.link.requests)
    assert classes == {1: 16, 2: 16}
    bench.link.gate.set()
    assert (await bench.until_final("b")).counts == LineCounts(60, 60)


async def test_a_key_without_rights_cancels_its_batch(bench: Bench) -> None:
    bench.link.gate.clear()
    await bench.create([body("t") for _ in range(3)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 3:
            await asyncio.sleep(0.01)

    def refuse(_: str) -> Caller:
        raise Unauthorized("This key was revoked.", code="api_key_revoked")

    bench.rights = refuse
    batch = await bench.until_final()
    assert (batch.state, batch.counts.cancelled) == (BatchState.CANCELLED, 3)
    [fault] = batch.faults
    assert (fault.code, fault.message) == (
        "api_key_revoked",
        "The batch was cancelled: its key has no rights now. This key was revoked.",
    )


async def test_a_change_of_keys_stops_a_batch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of keys calls the worker, which does not wait for its next round."""
    monkeypatch.setattr(worker, "POLL_SECONDS", 10 * PATIENCE)
    bench = Bench(tmp_path)
    await bench.open()
    bench.link.gate.clear()
    await bench.create([body("t") for _ in range(40)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32:
            await asyncio.sleep(0.01)

    def refuse(_: str) -> Caller:
        raise Unauthorized("This key was revoked.", code="api_key_revoked")

    bench.rights = refuse
    bench.worker.wake()
    async with asyncio.timeout(PATIENCE):
        batch = await bench.until_final()
    assert (batch.state, batch.counts) == (BatchState.CANCELLED, LineCounts(40, cancelled=40))
    assert len(bench.link.cancelled) == 32
    await bench.close()


async def test_a_persons_batch_goes_on_after_they_sign_out_and_ends_with_their_team(bench: Bench) -> None:
    ring = Keyring({}, bytes(32), is_open=False, teams={"search": TeamEntry()}, sign_in=True)
    bench.rights = lambda id_: ring.by_id(id_, "search")
    await bench.create([body("t")], other_batch("b", key="@abcdefg"))
    assert (await bench.until_final("b")).counts == LineCounts(1, 1)
    bench.link.gate.clear()
    await bench.create([body("t")], other_batch("c", key="@abcdefg"))
    ring = Keyring({}, bytes(32), is_open=False, teams={"search": TeamEntry()}, archived=["search"], sign_in=True)
    assert (await bench.until_final("c")).state is BatchState.CANCELLED


async def test_a_teams_lines_wait_while_its_budget_is_spent(tmp_path: Path) -> None:
    limiter = Limiter()
    small = Limit("l", "team", "search", Kind.MONTH, 3 * 10**12)
    rate = Limit("r", "team", "search", Kind.REQUESTS, 1)
    limiter.replace([small, rate], {})
    bench = Bench(tmp_path, limiter)
    await bench.open()
    try:
        spent = limiter.admit(Caller("search", "key"), "chat", Amounts(money=3 * 10**12 - 10), spends_only=True)
        await bench.create([body("t", max_tokens=10) for _ in range(3)])
        waiting = await bench.until(lambda batch: batch.waits)
        assert waiting.waits == worker.BUDGET_WORDS
        assert waiting.waits_until is not None
        assert waiting.counts.left == 3
        limiter.settle(spent, Amounts())
        batch = await bench.until_final()
        assert (batch.state, batch.counts) == (BatchState.COMPLETED, LineCounts(3, 3)), (
            "the rate limit does not count lines"
        )
        async with asyncio.timeout(PATIENCE):  # the ledger ends a line before the limits do
            while limiter.spendable(Caller("search", "key"), "chat") != 3 * 10**12 - bench.cost():
                await asyncio.sleep(0.01)
    finally:
        await bench.close()


async def test_a_spent_budget_of_one_key_leaves_the_lines_of_the_teams_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BUDGET_SECONDS", 2 * PATIENCE)
    limiter = Limiter()
    limiter.replace([Limit("l", "key", "poor", Kind.MONTH, 0)], {})
    bench = Bench(tmp_path, limiter)
    bench.rights = lambda key: Caller("search", key)
    await bench.open()
    try:
        await bench.create([body("t") for _ in range(50)], other_batch("a", key="poor"))
        assert (await bench.until(lambda batch: batch.waits, "a")).waits == worker.BUDGET_WORDS
        await bench.create([body("t") for _ in range(50)], other_batch("b", key="rich"))
        assert (await bench.until_final("b")).counts == LineCounts(50, 50)
        held = await bench.get("a")
        assert (held.waits, held.counts) == (worker.BUDGET_WORDS, LineCounts(50))
    finally:
        await bench.close()


async def test_reservations_of_running_lines_do_not_count_as_a_spent_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget holds the reservations of five lines, and the cost of all fifty."""
    monkeypatch.setattr(worker, "BUDGET_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(ends, "LONGEST_REFUSED", 2 * PATIENCE)
    limiter = Limiter()
    limiter.replace([Limit("l", "team", "search", Kind.MONTH, 600 * 10**6)], {})
    bench = Bench(tmp_path, limiter)
    await bench.open()
    try:
        await bench.create([body("t", max_tokens=10) for _ in range(50)])
        assert (await bench.until_final()).counts == LineCounts(50, 50)
        assert bench.cost() == 50 * (5 + 2 * 2) * 10**6
    finally:
        await bench.close()


async def test_a_stopped_server_goes_on_where_it_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.open()
    count = 0

    def script(request: HttpCall) -> Any:
        nonlocal count
        count += 1
        if count > 20:
            bench.link.gate.clear()
        return echo(request)

    bench.link.script = script
    await bench.create([body(f"t{number}") for number in range(60)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 40:
            await asyncio.sleep(0.01)
    bench.worker.stop_claiming()
    before = await bench.get()
    await bench.close()
    await bench.open()
    try:
        batch = await bench.until_final()
        assert batch.counts == LineCounts(60, 60)
        lines = await bench.results()
        assert [text(line.result) for line in lines] == [{"text": f"t{number}"} for number in range(60)]
        assert {line.attempts for line in lines} == {1}, "stopped lines do not count as attempts"
        assert len(bench.link.requests) <= 60 - before.counts.completed
        assert bench.rows()["settled", "done", 7] == 60
        assert bench.differences() == []
    finally:
        await bench.close()


async def test_a_server_that_lost_its_epoch_stops_its_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server took its lines over. Answers here would be charged but not stored."""
    monkeypatch.setattr(BatchStore, "is_alone", False)
    monkeypatch.setattr(worker, "BEAT_SECONDS", 0.05)
    bench.link.gate.clear()
    await bench.create([body(f"t{number}") for number in range(40)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32:
            await asyncio.sleep(0.01)
    first = set(bench.link.calls)
    assert len(RunnerTable(bench.database, "other").close_silent(-1.0)) == 1
    async with asyncio.timeout(PATIENCE):
        while not first <= set(bench.link.cancelled):
            await asyncio.sleep(0.01)
    bench.link.gate.set()
    assert (await bench.until_final()).counts == LineCounts(40, 40)
    assert bench.rows()["settled", "done", 7] == 40
    assert sum(count for (_, _, tokens), count in bench.rows().items() if tokens) == 40
    assert bench.differences() == []


async def test_a_line_whose_ledger_row_cannot_be_written_runs_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, refused = LedgerWriter.begin, 0

    def fail(writer: LedgerWriter, entry: Any) -> Any:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise Unavailable("The ledger cannot be written.", code="ledger_unavailable")
        return begin(writer, entry)

    monkeypatch.setattr(LedgerWriter, "begin", fail)
    await bench.create([body("t") for _ in range(5)])
    batch = await bench.until_final()
    assert (batch.counts, refused) == (LineCounts(5, 5), 3)
    assert bench.rows() == {("settled", "done", 7): 5}


async def test_a_ledger_that_cannot_write_does_not_delay_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. The row stays open, so the next start runs the line again and charges it once."""
    monkeypatch.setattr(worker, "CLOSE_SECONDS", 0.2)
    bench = Bench(tmp_path)
    await bench.open()
    write, failed = LedgerTable.write, threading.Event()

    def fail(table: LedgerTable, begun: Any, ended: Any, **options: Any) -> None:
        if options.get("riders") and ended:
            failed.set()
            raise Unavailable("full", code="disk_full")
        write(table, begun, ended, **options)

    monkeypatch.setattr(LedgerTable, "write", fail)
    await bench.create([body("t")])
    async with asyncio.timeout(PATIENCE):
        while not failed.is_set():
            await asyncio.sleep(0.01)
    await bench.close()
    monkeypatch.setattr(LedgerTable, "write", write)
    await bench.open()
    try:
        assert (await bench.until_final()).counts == LineCounts(1, 1)
        assert bench.rows() == {("interrupted", "interrupted", 0): 1, ("settled", "done", 7): 1}
        assert bench.differences() == []
    finally:
        await bench.close()


class FullDisk:
    """Refuses the ends of lines in the ledger until `has_room` is set. `refused` is set with the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused, self.has_room = threading.Event(), False
        write = LedgerTable.write

        def refuse(table: LedgerTable, begun: Any, ended: Any, **options: Any) -> None:
            if not self.has_room and options.get("riders") and ended:
                self.refused.set()
                raise Unavailable("full", code="disk_full")
            write(table, begun, ended, **options)

        monkeypatch.setattr(LedgerTable, "write", refuse)

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.refused.is_set():
                await asyncio.sleep(0.01)


async def test_a_line_that_waits_for_the_ledger_ends_once_its_batch_is_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    bench.link.script = lambda _: [EngineFailed("no")]
    await bench.create([body("t")])
    await disk.wait()
    bench.shift = BATCH.window
    bench.worker.wake()
    async with asyncio.timeout(PATIENCE):
        while not all(attempt.is_stopped for attempt, _ in bench.worker._running.values()):
            await asyncio.sleep(0.01)
    disk.has_room = True
    assert (await bench.until_final()).counts == LineCounts(1, expired=1)
    async with asyncio.timeout(PATIENCE):
        while bench.worker.running:
            await asyncio.sleep(0.01)


async def test_answers_to_lines_that_another_server_took_over_leave_the_budget_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchStore, "is_alone", False)
    disk, limiter = FullDisk(monkeypatch), Limiter()
    limiter.replace([Limit("l", "team", "search", Kind.MONTH, 10**15)], {})
    bench = Bench(tmp_path, limiter)
    await bench.open()
    try:
        await bench.create([body("t", max_tokens=10) for _ in range(3)])
        await disk.wait()
        async with asyncio.timeout(PATIENCE):
            while len(bench.link.requests) < 3:
                await asyncio.sleep(0.01)
        assert len(RunnerTable(bench.database, "other").close_silent(-1.0)) == 1
        disk.has_room = True
        async with asyncio.timeout(PATIENCE):
            while bench.worker.running:
                await asyncio.sleep(0.01)
        assert limiter.spendable(CALLER, "chat") == 10**15
        bench.worker._beat_at = 0.0
        assert (await bench.until_final()).counts == LineCounts(3, 3)
        assert bench.cost() == 3 * (5 + 2 * 2) * 10**6
        async with asyncio.timeout(PATIENCE):
            while limiter.spendable(CALLER, "chat") != 10**15 - bench.cost():
                await asyncio.sleep(0.01)
    finally:
        await bench.close()


async def test_a_missing_file_ends_its_lines(bench: Bench) -> None:
    await bench.create([body("t")])
    bench.bodies.clear()
    await bench.create([body("u")], other_batch("b"))
    bench.bodies.clear()
    batch = await bench.until_final("b")
    assert batch.counts in (LineCounts(1, 0, 1), LineCounts(1, 1))


async def answer_person(bench: Bench, number: int = 0) -> None:
    await answer_request(
        bench.gateway.gateway, RequestContext(f"r{number}", CALLER), ENDPOINTS["/v1/chat/completions"],
        json.dumps(body("person")).encode(),
    )  # fmt: skip


async def test_interactive_requests_take_the_places_of_lines_which_run_again(bench: Bench) -> None:
    """Six interactive requests arrive at 32 places and four spare ones."""
    bench.link.gate.clear()
    await bench.create([body(f"t{number}") for number in range(100)])
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32:
            await asyncio.sleep(0.01)
    people = [asyncio.create_task(answer_person(bench, number)) for number in range(6)]
    async with asyncio.timeout(PATIENCE):
        while len(bench.link.requests) < 32 + len(people):
            await asyncio.sleep(0.01)
    assert len(bench.link.cancelled) == 2
    policy = bench.gateway.queues["chat"].policy
    assert (policy.people_running, policy.running) == (6, 36)
    bench.link.gate.set()
    await asyncio.gather(*people)
    assert (await bench.until_final()).counts == LineCounts(100, 100)
    lines = await bench.results()
    assert [text(line.result) for line in lines] == [{"text": f"t{number}"} for number in range(100)]
    assert {line.attempts for line in lines} == {1}
    assert bench.rows() == {("settled", "cancelled", 0): 2, ("settled", "done", 7): 106}
    assert bench.differences() == []
    assert 0 < bench.gateway.line_rooms._lost["chat"].part(time.monotonic()) < 1


async def test_lines_leave_places_free_after_much_lost_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "QUIET_SECONDS", PATIENCE)
    seen: list[int] = []
    lost = bench.gateway.line_rooms._lost["chat"] = LostWork()
    lost.add(100.0, time.monotonic(), is_lost=True)
    await answer_person(bench)
    bench.link.look = lambda _: seen.append(bench.gateway.queues["chat"].running)
    bench.link.gate.clear()
    await bench.create([body("t") for _ in range(60)])
    async with asyncio.timeout(PATIENCE):
        while bench.worker.running < 24:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert bench.worker.running == 24
    bench.link.gate.set()
    await bench.until_final()
    assert max(seen) <= 24


async def test_a_batch_has_forecasts_while_it_runs_which_are_judged_at_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecaster, "EARLY_SECONDS", 0.05)
    monkeypatch.setattr(forecast, "WINDOW_SECONDS", 0.2)
    left = 200

    def script(request: HttpCall) -> Any:
        nonlocal left
        left -= 1
        if not left:
            bench.link.gate.clear()
        return echo(request)

    bench.link.script = script
    await bench.create([body(f"t{number}") for number in range(400)], replace(BATCH, created=time.time()))
    batch = await bench.until(lambda batch: batch.tenth_forecast is not None)
    assert batch.forecast is not None
    assert batch.first_forecast is not None
    assert batch.forecast.early <= batch.forecast.likely <= batch.forecast.late
    assert batch.slack is not None
    assert 0.9 < batch.slack <= 1.0
    rates = await bench.store.read(lambda tables: tables.rates.all())
    assert rates["chat"].per_second > 0
    bench.link.script = echo
    bench.link.gate.set()
    await bench.until_final()
    async with asyncio.timeout(PATIENCE):
        while len(bench.ratios) < 2:
            await asyncio.sleep(0.01)
    assert [made for made, _ in bench.ratios] == ["creation", "tenth"]
    assert all(ratio > 0 for _, ratio in bench.ratios)
    await bench.create([body("t")], other_batch("b", created=time.time()))
    await bench.worker.forecast("b")
    known = await bench.get("b")
    assert known.forecast is not None, "the model's rate and the work of lines are measured by now"
    await bench.worker.forecast("unknown")


async def test_a_rate_is_stored_only_while_it_is_measured(bench: Bench) -> None:
    bench.worker.stop_claiming()  # so that only this test measures
    forecasts = bench.worker._forecasts
    now = time.monotonic()
    for room, began in (("chat", now - forecaster.RENEW_SECONDS - 20), ("embed", now - forecaster.LATELY_SECONDS - 20)):
        meter = forecasts._meter(room)
        for seconds in (0, 6, 12):
            meter.advance(began + seconds, is_full=True)
            meter.add(60.0)
        assert meter.rate() is not None
    await forecasts.renew([])
    assert set(await bench.store.read(lambda tables: tables.rates.all())) == {"chat"}


async def test_a_rate_is_stored_when_a_batch_ends(bench: Bench) -> None:
    """By the next batch it may be old, and without another batch no forecast is renewed."""
    bench.worker.stop_claiming()  # so that only this test measures
    forecasts = bench.worker._forecasts
    meter = forecasts._meter("chat")
    for seconds in (-14, -8, -2):
        meter.advance(time.monotonic() + seconds, is_full=True)
        meter.add(60.0)
    await forecasts.judge(["gone"])
    assert set(await bench.store.read(lambda tables: tables.rates.all())) == {"chat"}


async def test_a_servers_worker_looks_keys_up_as_they_are_then(served: BatchServer) -> None:
    """A key may be created or revoked at any time after the server's start."""
    worker = batch_worker(served.gateway.gateway)
    later = Keyring({}, bytes(32), is_open=False, teams={"search": TeamEntry()}, sign_in=True)
    object.__setattr__(served.gateway.gateway.services, "keyring", lambda: later)
    assert worker._rights("@abcdefg", "search").team == "search"


async def test_a_servers_metrics_compare_forecasts_with_the_ends_of_batches(served: BatchServer) -> None:
    forecasts = batch_worker(served.gateway.gateway)._forecasts
    forecasts._observe("tenth", 0.5)
    text = (await served.http.get("/metrics")).text
    assert 'roundhouse_batch_forecast_ratio_sum{made="tenth"} 0.5' in text


async def test_another_servers_forecast_stays_until_it_is_old(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(bench.store), "is_alone", False)
    always = lambda needs, _, now: {one.id: Forecast(now, now, now, now) for one in needs}  # noqa: E731
    monkeypatch.setattr(forecaster, "forecast", always)
    bench.worker.stop_claiming()  # so that only this test forecasts
    await bench.create([body("t")], other_batch("b", created=time.time()))
    for age, is_stored in ((10.0, False), (2 * forecaster.OTHERS_SECONDS, True)):
        made = time.time() - age
        theirs = {"b": Forecast(made, made, made, made)}
        await bench.store.write(lambda tables, theirs=theirs: tables.batches.store_forecasts(theirs))
        await bench.worker.forecast("b")
        found = await bench.get("b")
        assert found.forecast is not None
        assert (found.forecast.made > made) is is_stored


async def test_lines_for_another_nodes_model_are_left_to_it_with_its_reason(bench: Bench) -> None:
    looks = 0

    def find_remote(name: str, _: Caller) -> ResolvedName | None:
        nonlocal looks
        looks += 1
        return ResolvedName(bench.gateway.recipes[0]) if is_remote else None

    is_remote = True
    bench.gateway.line_rooms._find_remote = find_remote
    await bench.create([body("one"), body("two")])
    await bench.store.write(lambda tables: tables.batches.wait([BATCH.id], "The other node loads it.", None))
    bench.worker.wake()
    seen = looks
    batch = await bench.until(lambda _: looks > seen + 5)
    assert (batch.waits, batch.counts.left, bench.link.requests) == ("The other node loads it.", 2, [])
    is_remote = False
    assert (await bench.until_final()).counts == LineCounts(2, 2)


async def test_a_line_that_is_stopped_before_it_begins_waits_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "PACE_SECONDS", 1000.0)
    bench.gateway.line_rooms._used["chat"] = math.inf
    await bench.create([body("a"), body("b"), body("c")])
    await bench.until(lambda batch: batch.counts.completed == 1)
    async with asyncio.timeout(PATIENCE):
        while bench.worker.running != 2:  # the first line's task ends after its row
            await asyncio.sleep(0.01)
    await bench.close()
    monkeypatch.undo()
    await bench.open()
    batch = await bench.until_final()
    assert batch.counts == LineCounts(3, 3, 0)


async def test_a_line_that_breaks_the_worker_pauses_before_it_runs_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(attempt: LineAttempt) -> None:
        runs.append(attempt.line.custom_id)
        raise KeyError

    runs = list[str]()
    monkeypatch.setattr(ends, "LONGEST_REFUSED", 30.0)
    with monkeypatch.context() as patch:
        patch.setattr(bench.worker, "_run_line", broken)
        await bench.create([body("a")])
        async with asyncio.timeout(PATIENCE):
            while not runs or bench.worker.running:
                await asyncio.sleep(0.01)
        bench.worker.wake()
        await asyncio.sleep(0.1)
        assert runs == ["id-0"]
    bench.shift = 31.0
    bench.worker.wake()
    assert (await bench.until_final()).counts == LineCounts(1, 1)
