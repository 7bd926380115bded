"""The tables of batches on SQLite and PostgreSQL: states, counts, epochs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from batches import lines as lines_module
from batches.records import (
    BatchFault,
    BatchRecord,
    BatchState,
    Forecast,
    Line,
    LineChange,
    LineCounts,
    LineEnd,
    LineState,
    LineUsage,
    NewLine,
)
from batches.runners import RECENT_SECONDS, RateTable, RunnerTable
from batches.storage.opening import MIGRATIONS, prepare
from batches.storage.queries import is_open
from batches.storage.tables import BATCHES, LINES, METADATA, VERSION_TABLE
from batches.store import BatchTables
from batches.work.forecast import RoomRate
from batches.work.running import LineAttempt
from registry.storage.database import Database
from registry.storage.migration import newest, revision
from tenants.caller import Caller
from tests.unit.batches.conftest import BATCH, FILE

Start = Callable[..., BatchRecord]
USAGE = LineUsage(7, 2, 3, 1)
DONE = LineEnd(200, body=b'{"a": 1}', request="req-1", served="m@1", adapter="sql@sha256:1", usage=USAGE)


def final(line: Line, end: LineEnd = DONE) -> LineChange:
    return LineChange(LineState.ENDED, end, line.attempts + 1, line.deaths)


def again(line: Line, ready: float = 0.0, deaths: int = 0) -> LineChange:
    return LineChange(LineState.WAITING, LineEnd(503, "engine_died"), line.attempts + 1, deaths, ready)


def state(tables: BatchTables, id_: str = BATCH.id) -> tuple[BatchState, LineCounts]:
    batch = tables.batches.get(id_)
    assert batch is not None
    return batch.state, batch.counts


def test_the_migrations_make_the_declared_tables(database: Database) -> None:
    assert revision(database, VERSION_TABLE) == newest(MIGRATIONS)
    prepare(database)  # again, without an effect
    inspector = sa.inspect(database.engine)
    for table in METADATA.sorted_tables:
        columns = {column["name"]: column["nullable"] for column in inspector.get_columns(table.name)}
        assert columns == {column.name: column.nullable for column in table.columns}
        indexes = {index["name"] for index in inspector.get_indexes(table.name)}
        assert indexes == {index.name for index in table.indexes}


def test_a_file_is_visible_only_to_its_team(tables: BatchTables) -> None:
    tables.files.create(FILE)
    assert tables.files.get("file-1", "search") == FILE
    assert tables.files.get("file-1", "other") is None
    assert tables.files.stored("search") == (1, 100)
    assert not tables.files.delete("file-1", "other", 5.0)
    assert tables.files.delete("file-1", "search", 5.0)
    assert not tables.files.delete("file-1", "search", 6.0)
    assert tables.files.get("file-1", "search") is None
    assert tables.files.unused(5.0) == [replace(FILE, deleted=5.0)]
    assert tables.files.list("search") == []


def test_files_are_paged_in_both_orders(tables: BatchTables) -> None:
    for number in range(5):
        tables.files.create(replace(FILE, id=f"file-{number}", created=float(number // 2)))

    def ids(**options: object) -> list[str] | None:
        files = tables.files.list("search", **options)
        return None if files is None else [file.id for file in files]

    assert ids() == ["file-4", "file-3", "file-2", "file-1", "file-0"]
    assert ids(after="file-3", limit=2) == ["file-2", "file-1"]
    assert ids(after="file-1", newest=False) == ["file-2", "file-3", "file-4"]
    assert ids(purpose="evals") == []
    assert ids(after="file-9") is None


def test_an_expired_file_that_a_batch_reads_is_not_listed(tables: BatchTables, start: Start) -> None:
    start()
    tables.files.create(replace(FILE, id="file-2", expires=50.0))
    tables.batches.create(replace(BATCH, id="batch_2", input_file="file-2"))
    assert tables.files.unused(60.0) == []

    def ids(now: float) -> list[str]:
        return [file.id for file in tables.files.list("search", now=now) or ()]

    assert ids(49.0) == ["file-2", FILE.id]
    assert ids(50.0) == [FILE.id]


def test_a_file_cannot_be_deleted_while_a_batch_reads_it(tables: BatchTables, start: Start) -> None:
    start("m")
    tables.files.delete("file-1", "search", 12.0)
    assert tables.files.unused(13.0) == []
    assert tables.batches.cancel(BATCH.id, 14.0)
    assert tables.lines.drop(BATCH.id, LineState.CANCELLED, 14.0) == 1
    assert [file.id for file in tables.files.unused(15.0)] == ["file-1"]
    tables.files.remove("file-1")
    assert tables.files.stored() == (0, 0)


def test_a_batch_needs_a_file_of_its_team(tables: BatchTables) -> None:
    assert tables.batches.create(BATCH) is None
    tables.files.create(replace(FILE, team="other"))
    assert tables.batches.create(BATCH) is None


def test_a_repeated_creation_returns_the_first_batch(tables: BatchTables) -> None:
    tables.files.create(FILE)
    first = replace(BATCH, idempotency="once", body_hash="aa")
    assert tables.batches.create(first, 0.0) == first
    repeated = replace(first, id="batch_2", body_hash="bb")
    assert tables.batches.create(repeated, 0.0) == first
    assert tables.batches.create(repeated, 11.0) == repeated, "the key is free again a day later"


def test_a_stored_batch_is_read_as_it_was(tables: BatchTables) -> None:
    tables.files.create(FILE)
    batch = replace(BATCH, metadata={"a": "b"}, faults=(BatchFault("empty_file", "Empty.", 1),), usage=USAGE)
    tables.batches.create(batch)
    assert tables.batches.get(BATCH.id, "search") == batch
    assert tables.batches.get(BATCH.id, "other") is None
    assert tables.batches.list("search", "openai") == [batch]
    assert tables.batches.list("search", "anthropic") == []


def test_faults_fail_a_batch_that_is_validated(tables: BatchTables, start: Start) -> None:
    tables.files.create(FILE)
    tables.batches.create(BATCH)
    assert tables.lines.add(BATCH.id, [NewLine(0, "a", "m", 0, 1)])
    faults = [BatchFault("duplicate_custom_id", "Twice.", number) for number in range(101)]
    assert tables.batches.fail(BATCH.id, 20.0, faults)
    failed = tables.batches.get(BATCH.id)
    assert failed is not None
    assert (failed.state, failed.ended, len(failed.faults), failed.fault_count) == (BatchState.FAILED, 20.0, 100, 101)
    assert failed.counts.total == 0
    assert not tables.lines.unfinished([BATCH.id])
    assert not tables.batches.start(BATCH.id, 21.0)
    assert not tables.batches.cancel(BATCH.id, 21.0)
    assert not tables.lines.add(BATCH.id, [NewLine(0, "a", "m", 0, 1)])


def test_lines_run_and_end_once(tables: BatchTables, start: Start) -> None:
    start("m", "n", "m")
    epoch, _ = tables.runners.open()
    assert {(g.model, g.count) for g in tables.lines.waiting([BATCH.id], 12.0)} == {("m", 2), ("n", 1)}
    lines = tables.lines.claim(epoch, BATCH.id, "m", 5, 12.0)
    assert [(line.number, line.state, line.epoch) for line in lines] == [
        (0, LineState.RUNNING, epoch),
        (2, LineState.RUNNING, epoch),
    ]
    assert tables.lines.claim(epoch, BATCH.id, "m", 5, 12.0) == []
    assert tables.lines.end(epoch, lines[0], final(lines[0]), 13.0, "uid")
    assert not tables.lines.end(epoch, lines[0], final(lines[0]), 13.0), "it has already ended"
    refused = replace(DONE, status=404, code="model_not_found", usage=USAGE)
    assert tables.lines.end(epoch, lines[1], final(lines[1], refused), 14.0)
    assert state(tables) == (BatchState.IN_PROGRESS, LineCounts(3, 1, 1))
    [last] = tables.lines.claim(epoch, BATCH.id, "n", 1, 14.0)
    assert tables.lines.end(epoch, last, final(last), 15.0)
    ended = tables.batches.get(BATCH.id)
    assert ended is not None
    assert (ended.state, ended.ended) == (BatchState.COMPLETED, 15.0)
    assert ended.usage == LineUsage(14, 4, 6, 2), "without the failed line"
    assert ended.output_bytes == 3 * len(DONE.body)
    results = tables.lines.results(BATCH.id)
    assert [(line.number, line.status, line.result) for line in results] == [
        (0, 200, DONE.body),
        (1, 200, DONE.body),
        (2, 404, DONE.body),
    ]
    assert (results[0].uid, results[0].adapter, results[0].attempts) == ("uid", "sql@sha256:1", 1)
    assert [line.number for line in tables.lines.results(BATCH.id, after=0, limit=1)] == [1]
    assert tables.lines.failures(BATCH.id) == {"model_not_found": 1}


def test_answers_beyond_the_bound_are_not_stored(
    tables: BatchTables, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "MAX_OUTPUT", len(DONE.body) + 1)
    start("m", "m")
    epoch, _ = tables.runners.open()
    for line in tables.lines.claim(epoch, BATCH.id, "m", 2, 12.0):
        assert tables.lines.end(epoch, line, final(line), 13.0)
    first, second = tables.lines.results(BATCH.id)
    assert (first.status, first.result) == (200, DONE.body)
    assert (second.status, second.code, second.result) == (None, "output_too_large", b"")
    assert tables.lines.failures(BATCH.id) == {"output_too_large": 1}
    assert state(tables) == (BatchState.COMPLETED, LineCounts(2, 1, 1))


def test_results_are_read_in_pages_of_bounded_bytes(tables: BatchTables, start: Start) -> None:
    start("chat", "chat", "chat", "chat", "chat")
    epoch, _ = tables.runners.open(alone=True)
    for line, size in zip(tables.lines.claim(epoch, BATCH.id, "chat", 5, 20.0), (90, 40, 60, 1, 200), strict=True):
        end = LineEnd(200, body=b"x" * size)
        assert tables.lines.end(epoch, line, LineChange(LineState.ENDED, end, 1, 0), 20.0)
    pages, after = [], -1
    while page := tables.lines.results(BATCH.id, after, most=100):
        pages.append([line.number for line in page])
        after = page[-1].number
    assert pages == [[0], [1, 2], [3], [4]]
    assert [line.number for line in tables.lines.results(BATCH.id, 0, limit=2, most=100)] == [1, 2]


def test_a_line_waits_again_until_it_is_ready(tables: BatchTables, start: Start) -> None:
    start("m")
    epoch, _ = tables.runners.open()
    [line] = tables.lines.claim(epoch, BATCH.id, "m", 1, 12.0)
    assert tables.lines.end(epoch, line, again(line, ready=20.0), 13.0)
    assert tables.lines.claim(epoch, BATCH.id, "m", 1, 19.0) == []
    [line] = tables.lines.claim(epoch, BATCH.id, "m", 1, 20.0)
    assert (line.attempts, line.status, line.code) == (1, None, "engine_died")


def test_suspects_are_claimed_apart(tables: BatchTables, start: Start) -> None:
    start("m", "m")
    epoch, _ = tables.runners.open()
    line, _ = tables.lines.claim(epoch, BATCH.id, "m", 2, 12.0)
    tables.lines.end(epoch, line, again(line, deaths=1), 13.0)
    assert tables.lines.claim(epoch, BATCH.id, "m", 2, 14.0) == []
    [group] = tables.lines.waiting([BATCH.id], 14.0)
    assert (group.count, group.suspects) == (0, 1)
    assert [one.number for one in tables.lines.claim(epoch, BATCH.id, "m", 2, 14.0, suspects=True)] == [0]


def test_a_closed_epoch_cannot_write(tables: BatchTables, start: Start) -> None:
    start("m", "m")
    old, _ = tables.runners.open()
    [line] = tables.lines.claim(old, BATCH.id, "m", 1, 12.0)
    new, returned = tables.runners.open()
    assert (new > old, returned) == (True, 1)
    assert not tables.lines.end(old, line, final(line), 14.0)
    assert tables.lines.claim(old, BATCH.id, "m", 1, 14.0) == []
    assert state(tables) == (BatchState.IN_PROGRESS, LineCounts(2))
    lines = tables.lines.claim(new, BATCH.id, "m", 2, 14.0)
    assert [one.number for one in lines] == [0, 1]
    assert not tables.lines.end(old, line, final(line), 15.0), "the line is in another run"
    assert tables.runners.close(new) == 2


def test_epochs_of_other_servers_stay_open(database: Database, tables: BatchTables) -> None:
    other, _ = RunnerTable(database, "server-b").open()
    mine, _ = tables.runners.open()
    with database.read() as connection:
        assert is_open(connection, other)
        assert is_open(connection, mine)
    tables.runners.open(alone=True)
    with database.read() as connection:
        assert not is_open(connection, other)
        assert not is_open(connection, mine)


async def test_an_error_code_with_a_nul_is_left_out(tables: BatchTables, start: Start) -> None:
    """A provider may send one. PostgreSQL refuses it, and the ledger would retry the transaction for ever."""
    batch, (epoch, _) = start("m"), tables.runners.open()
    [line] = tables.lines.claim(epoch, batch.id, "m", 1, 12.0)
    attempt = LineAttempt(batch, line, epoch, Caller("search"), "req-1", lambda: 12.0)
    attempt.answer(400, b'{"error": {"code": "a\\u0000b", "type": "invalid_request_error"}}')
    assert tables.lines.end(epoch, line, attempt.change(), 12.0)
    assert tables.lines.failures(batch.id) == {"invalid_request_error": 1}


def test_a_cancelled_batch_keeps_what_has_ended(tables: BatchTables, start: Start) -> None:
    start("m", "m", "m")
    epoch, _ = tables.runners.open()
    done, runs = tables.lines.claim(epoch, BATCH.id, "m", 2, 12.0)
    tables.lines.end(epoch, done, final(done), 13.0)
    assert tables.batches.cancel(BATCH.id, 14.0, BatchFault("key_revoked", "The key was revoked."))
    assert tables.batches.cancel(BATCH.id, 14.5), "cancelling is repeatable"
    assert tables.lines.claim(epoch, BATCH.id, "m", 1, 15.0) == []
    assert tables.lines.drop(BATCH.id, LineState.CANCELLED, 15.0) == 1
    assert state(tables)[0] is BatchState.CANCELLING
    assert tables.lines.end(epoch, runs, again(runs), 16.0)
    assert tables.lines.drop(BATCH.id, LineState.CANCELLED, 17.0) == 1
    assert state(tables) == (BatchState.CANCELLED, LineCounts(3, 1, 0, 2))
    assert [line.state for line in tables.lines.results(BATCH.id)] == [
        LineState.ENDED,
        LineState.CANCELLED,
        LineState.CANCELLED,
    ]


def test_a_batch_without_lines_is_cancelled_at_once(tables: BatchTables) -> None:
    tables.files.create(FILE)
    tables.batches.create(BATCH)
    assert tables.batches.cancel(BATCH.id, 14.0)
    assert state(tables)[0] is BatchState.CANCELLED
    assert tables.batches.delete(BATCH.id, "search", 15.0)
    assert tables.batches.get(BATCH.id) is None


def test_a_batch_past_its_window_expires(tables: BatchTables, start: Start) -> None:
    start("m", "m")
    epoch, _ = tables.runners.open()
    [line] = tables.lines.claim(epoch, BATCH.id, "m", 1, 12.0)
    assert tables.lines.drop(BATCH.id, LineState.EXPIRED, 90_000.0) == 1
    tables.lines.end(epoch, line, final(line), 90_001.0)
    assert state(tables) == (BatchState.EXPIRED, LineCounts(2, 1, 0, 0, 1))


def test_why_a_batch_waits_is_stored(tables: BatchTables, start: Start) -> None:
    start("m")
    tables.batches.wait([BATCH.id], "The month's budget is spent.", 50.0)
    batch = tables.batches.get(BATCH.id)
    assert batch is not None
    assert (batch.waits, batch.waits_until) == ("The month's budget is spent.", 50.0)
    [unfinished] = tables.batches.unfinished("search")
    assert unfinished.id == BATCH.id
    assert tables.batches.unfinished("other") == []


def test_no_teams_batches_are_left_out(database: Database, tables: BatchTables, start: Start) -> None:
    start("model-a")
    with database.write() as connection:
        row = connection.execute(sa.select(BATCHES)).mappings().one()
        others = [{**row, "id": f"other-{number}", "team": f"team-{number % 20}"} for number in range(2_000)]
        connection.execute(sa.insert(BATCHES), others)
    assert len(tables.batches.unfinished()) == 1 + len(others)


def test_forecasts_of_a_batch(tables: BatchTables, start: Start) -> None:
    """The first one and the one after a tenth are kept, and each batch is judged once."""
    start("m", "m")
    one, two, three = (Forecast(at, at + 5, at + 10, at + 20) for at in (1.0, 2.0, 3.0))
    tables.batches.store_forecasts({BATCH.id: one, "unknown": one})
    tables.batches.store_forecasts({BATCH.id: two}, [BATCH.id])
    tables.batches.store_forecasts({BATCH.id: three}, [BATCH.id])
    batch = tables.batches.get(BATCH.id)
    assert batch is not None
    assert (batch.forecast, batch.first_forecast, batch.tenth_forecast) == (three, one, two)
    assert (batch.slack, batch.is_late) == ((10.0 + 86_400 - 13.0) / 86_400, False)
    assert replace(batch, forecast=replace(three, likely=1e6)).is_late
    assert tables.batches.judge([BATCH.id]) == [], "it still runs"
    epoch, _ = tables.runners.open()
    for line in tables.lines.claim(epoch, BATCH.id, "m", 2, 12.0):
        assert tables.lines.end(epoch, line, final(line), 20.0)
    tables.batches.store_forecasts({BATCH.id: one})
    [judged] = tables.batches.judge([BATCH.id])
    assert (judged.ended, judged.forecast, judged.first_forecast, judged.slack) == (20.0, three, one, None)
    assert tables.batches.judge([BATCH.id]) == []


def test_the_remaining_work_is_summed_by_name(tables: BatchTables, start: Start) -> None:
    start("m", "n", "m")
    epoch, _ = tables.runners.open()
    [line] = tables.lines.claim(epoch, BATCH.id, "m", 1, 12.0)
    assert {(one.model, one.count, one.size) for one in tables.lines.unfinished([BATCH.id])} == {
        ("m", 2, 20), ("n", 1, 10),
    }  # fmt: skip
    assert tables.lines.end(epoch, line, final(line), 13.0)
    assert {(one.model, one.count) for one in tables.lines.unfinished([BATCH.id, "b"])} == {("m", 1), ("n", 1)}


def test_the_rate_of_a_former_version_with_the_longest_name_is_stored(tables: BatchTables) -> None:
    room = f"{'m' * 128}@999999999"
    tables.rates.store({room: RoomRate(50.0, 0.1)}, 1.0)
    assert tables.rates.all() == {room: RoomRate(50.0, 0.1)}


def test_rates_of_servers_that_work_add_up(tables: BatchTables, database: Database) -> None:
    mine, other = RunnerTable(database, "server-a"), RunnerTable(database, "server-b")
    rates = RateTable(database, "server-b")
    epoch, _ = mine.open()
    tables.rates.store({"chat": RoomRate(50.0, 0.1), "embed": RoomRate(9.0, 0.2)}, 1.0)
    rates.store({"chat": RoomRate(70.0, 0.3)}, 2.0)
    assert tables.rates.all() == {"chat": RoomRate(50.0, 0.1), "embed": RoomRate(9.0, 0.2)}
    other.open()
    assert tables.rates.all()["chat"] == RoomRate(120.0, 0.3)
    tables.rates.store({"chat": RoomRate(40.0, 0.1)}, 3.0)
    assert rates.all()["chat"] == RoomRate(110.0, 0.3)
    mine.close(epoch)
    assert rates.all() == {"chat": RoomRate(70.0, 0.3), "embed": RoomRate(9.0, 0.2)}, "the latest measurements"


def test_an_older_rate_does_not_count_beside_anothers_recent_one(tables: BatchTables, database: Database) -> None:
    rates = RateTable(database, "server-b")
    for server in ("server-a", "server-b"):
        RunnerTable(database, server).open()
    tables.rates.store({"chat": RoomRate(50.0, 0.1)}, 1000.0)
    rates.store({"chat": RoomRate(70.0, 0.3)}, 1000.0 + RECENT_SECONDS - 1)
    assert rates.all() == {"chat": RoomRate(120.0, 0.3)}
    rates.store({"chat": RoomRate(70.0, 0.3)}, 1000.0 + RECENT_SECONDS)
    assert rates.all() == {"chat": RoomRate(70.0, 0.3)}


def test_of_simultaneous_calls_with_one_key_one_creates(tables: BatchTables) -> None:
    """As when two gateways get a client's call and its repetition."""
    tables.files.create(FILE)

    def create(number: int) -> tuple[str, str]:
        file = tables.files.create(replace(FILE, id=f"file-again-{number}", idempotency="k"), 0.0)
        batch = tables.batches.create(replace(BATCH, id=f"batch_{number}", idempotency="k"), 0.0)
        assert batch is not None
        return file.id, batch.id

    with ThreadPoolExecutor(8) as pool:
        created = set(pool.map(create, range(8)))
    assert len({file for file, _ in created}) == len({batch for _, batch in created}) == 1


def test_old_batches_are_deleted_once_their_answers_and_callbacks_are(
    database: Database, tables: BatchTables, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batches.table.PORTION", 1)
    start("m", batch=replace(BATCH, id="running", created=200.0))
    for number in range(4):
        tables.batches.create(replace(BATCH, id=f"old-{number}", created=number))
        tables.batches.fail(f"old-{number}", 100.0 + number, [])
    assert tables.batches.prune(102.0) == 2
    with database.write() as connection:
        for id_ in ("old-2", "old-3"):
            connection.execute(sa.insert(LINES).values(batch=id_, number=0, custom_id="", model="m", **_NO_PLACE))
    assert tables.batches.prune(1e10) == 0
    with database.write() as connection:
        connection.execute(sa.delete(LINES).where(LINES.c.batch == "old-2"))
    assert tables.batches.prune(1e10) == 1
    assert [batch.id for batch in tables.batches.recent(None, 9)] == ["running", "old-3"]


_NO_PLACE = {"offset": 0, "length": 1, "state": LineState.ENDED.value}
