"""The ledger in both databases: rows, sums, restarts and reports."""

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.errors import BadRequest, NotFound
from registry.recipes.provider import SERVED
from registry.storage import database as databases
from registry.storage.database import PAUSE, Database
from tenants.ledger import pruning, report
from tenants.ledger.lookup import judge
from tenants.ledger.organization import UsageQuery, page_of
from tenants.ledger.report import Grouping, UsageFilter, UsageSum, parse_groupings, span, used
from tenants.ledger.rows import BATCH, Entry, Settlement
from tenants.ledger.table import LedgerTable
from tenants.limits.records import Kind, Limit
from tenants.limits.table import LimitTable
from tenants.storage.opening import open_tables

HOUR, DAY = 3600, 86_400
_UIDS = itertools.count()


def entry(at: float = 0.0, *, team: str = "search", model: str = "m", adapter: str = "") -> Entry:
    uid = f"uid-{next(_UIDS)}"
    return Entry(
        uid, "req-1", 1, at, team, "key00000", "/v1/chat/completions", model, "rev", adapter, "interactive", "api"
    )


def done(begun: Entry, prompt: int = 0, output: int = 0) -> Settlement:
    return Settlement(begun, "done", 200, None, prompt, prompt // 2, output, 1500, 10, 20, 30)


@pytest.fixture
def ledger(database: Database) -> LedgerTable:
    return LedgerTable(database, "server-1")


def test_sums_are_kept_when_old_requests_are_deleted(
    ledger: LedgerTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)
    old = [entry(at) for at in (5.0, HOUR - 1.0, HOUR + 5.0, 2 * HOUR - 1.0, 6.0)]
    new, running = [entry(2 * HOUR), entry(3 * HOUR)], entry(7.0)
    ledger.write([*old, *new, running], [done(one, 100, 7) for one in (*old, *new)])
    before = used(database, UsageFilter(0, DAY, (Grouping.HOUR,)))
    assert list(pruning.prune(database, 2 * HOUR + 1799.0)) == [2, 4, 5]
    with database.read() as connection:
        left = {row.uid for row in connection.execute(sa.text("SELECT uid FROM ledger"))}
    assert left == {one.uid for one in (*new, running)}
    assert used(database, UsageFilter(0, DAY, (Grouping.HOUR,))) == before
    assert ledger.differences() == []
    assert list(pruning.prune(database, HOUR)) == [], "nothing more is deleted"
    ledger.write([], [done(running)])
    assert ledger.differences() == []
    with database.write() as connection:
        connection.execute(sa.text("DELETE FROM ledger WHERE uid = :uid"), {"uid": new[0].uid})
    assert [one.hour for one in ledger.differences()] == [2 * HOUR], "other missing rows are reported"


def test_others_may_write_between_two_parts_of_a_deletion(
    ledger: LedgerTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 1)
    several = [entry(at) for at in (5.0, 6.0, 7.0)]
    ledger.write(several, [done(one) for one in several])
    newer = [entry(2 * HOUR) for _ in several]
    pauses: list[float] = []
    log_sizes: list[int] = []

    def sleep(seconds: float) -> None:
        if database.is_sqlite:
            log_sizes.append(Path(f"{database.url.database}-wal").stat().st_size)
        ledger.write([newer[len(pauses)]], [])
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    assert list(pruning.prune(database, HOUR)) == [1, 2, 3]
    assert pauses == [PAUSE] * 3
    assert ledger.open_rows() == 3
    assert set(log_sizes) <= {0}, "SQLite's log would grow by all parts"


def test_a_pause_does_not_wait_for_readers_or_writers(database: Database) -> None:
    ledger = LedgerTable(database, "server-1")
    with database.read() as connection:
        connection.execute(sa.text("SELECT count(*) FROM ledger")).all()
        ledger.write([entry()], [])
        database.pause()
    with database.write() as connection:
        connection.execute(sa.text("DELETE FROM ledger"))
        database.pause()
    if database.is_sqlite:
        for _ in range(3):  # connections of the pool wait for others again
            with database.write() as connection:
                assert connection.execute(sa.text("PRAGMA busy_timeout")).scalar() == databases.BUSY_SECONDS * 1000


def test_sums_agree_after_an_interrupted_deletion(
    ledger: LedgerTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 1)
    several = [entry(at) for at in (5.0, 6.0, HOUR + 5.0)]
    ledger.write(several, [done(one, 100, 7) for one in several])
    for gone in pruning.prune(database, 9 * HOUR):
        assert ledger.differences() == []
        if gone == 2:
            break
    assert sum(pruning.prune(database, 9 * HOUR)) == 1


def test_the_longest_names_are_not_cut(ledger: LedgerTable, database: Database) -> None:
    model, name = "m" * 128, f"{'t' * 64}/{'a' * 64}"
    one = replace(
        entry(team="t" * 64, model=f"{model}@999999999", adapter=f"{name}@sha256:{'0' * 64}"),
        target=f"{model}:{name}@v999999999",
    )
    ledger.write([one], [done(one)])
    (found,) = used(database, UsageFilter(0, DAY, (Grouping.MODEL, Grouping.ADAPTER)))
    assert found.names == (one.model, one.adapter)


def test_the_longest_name_of_a_providers_model_is_counted_and_limited(ledger: LedgerTable, database: Database) -> None:
    one = entry(team="default", model=f"{'p' * 64}/{'m' * (SERVED - 65)}")
    ledger.write([one], [done(one)])
    (found,) = used(database, UsageFilter(0, DAY, (Grouping.MODEL,)))
    limit = LimitTable(database).set(Limit("", "team", "default", Kind.MONTH, 1, model=one.model))
    assert found.names == (one.model,) == (limit.model,)


def test_a_text_that_the_database_refuses_is_the_clients_fault(ledger: LedgerTable, database: Database) -> None:
    with pytest.raises(NotFound if database.is_sqlite else BadRequest):
        judge(database, "search", "req-\0", True)


def test_a_row_is_open_until_its_end_is_written(ledger: LedgerTable, database: Database) -> None:
    one = entry(10.0)
    ledger.write([one], [])
    assert ledger.open_rows() == 1
    assert used(database, UsageFilter(0, DAY)) == [UsageSum((), *[0] * 16)], "running requests are not in the sums"
    ledger.write([], [done(replace(one, revision="newer"), 100, 7)])
    assert ledger.open_rows() == 0
    assert used(database, UsageFilter(0, DAY)) == [UsageSum((), 1, 0, 100, 50, 7, 1500, 10, 30, *[0] * 8)]
    with database.read() as connection:
        row = connection.execute(sa.text("SELECT * FROM ledger")).one()
    assert (row.uid, row.request, row.state, row.status) == (one.uid, "req-1", "settled", 200)
    assert (row.prompt_tokens, row.completion_tokens, row.first_ms) == (100, 7, 20)
    assert row.revision == "newer", "the revision that answered"


def test_a_server_that_was_presumed_dead_still_writes_its_ends(database: Database) -> None:
    ledger, sweeper = (LedgerTable(database, server, in_fleet=True) for server in ("server-1", "server-2"))
    one, other = replace(entry(10.0), reserved_micro=700), replace(entry(20.0), reserved_micro=30)
    line = replace(entry(30.0), source=BATCH)
    ledger.write([one, other, line], [])
    assert sweeper.interrupt_server("server-1") == 3
    assert sweeper.interrupt_server("server-1") == 0
    sweeper.write([], [done(one, 100, 7)], again=True)  # only their own server may end them
    (swept,) = used(database, UsageFilter(0, HOUR))
    assert (swept.requests, swept.interrupted, swept.prompt_tokens, swept.lost_micro) == (3, 3, 0, 730)
    ledger.write([], [done(one, 100, 7), done(line, 100, 7)])
    ledger.write([one], [done(one, 100, 7), done(one, 1, 1)], again=True)
    (late,) = used(database, UsageFilter(0, HOUR))
    assert (late.requests, late.interrupted, late.prompt_tokens, late.lost_micro) == (3, 2, 100, 30)
    assert ledger.differences() == []
    with database.read() as connection:
        states = {row.uid: row.state for row in connection.execute(sa.text("SELECT uid, state FROM ledger"))}
    assert states == {one.uid: "settled", other.uid: "interrupted", line.uid: "interrupted"}


def test_beginnings_and_ends_may_be_one_transaction(ledger: LedgerTable, database: Database) -> None:
    entries = [entry(float(i)) for i in range(300)]
    ledger.write(entries, [done(one, 2, 1) for one in entries])
    assert used(database, UsageFilter(0, HOUR))[0].prompt_tokens == 600
    assert ledger.differences() == []


def test_a_failed_transaction_leaves_nothing(ledger: LedgerTable) -> None:
    one, other = entry(), entry()
    ledger.write([one], [])
    with pytest.raises(sa.exc.IntegrityError):
        ledger.write([other, one], [done(other, 5)])
    assert ledger.open_rows() == 1
    assert ledger.differences() == []


def test_repeated_writes_count_once(ledger: LedgerTable, database: Database) -> None:
    """After a connection lost at the commit, it is unknown whether the write succeeded."""
    one, other = entry(), entry()
    ledger.write([one, other], [done(one, 5)])
    ledger.write([], [done(one, 5), done(other, 7)], again=True)
    assert used(database, UsageFilter(0, HOUR))[0].prompt_tokens == 12
    assert ledger.differences() == []


def test_open_rows_of_a_killed_server_are_interrupted(ledger: LedgerTable, database: Database) -> None:
    other_server = LedgerTable(database, "server-2")
    mine, theirs, ended = entry(), entry(), entry()
    ledger.write([mine, ended], [done(ended, 5)])
    other_server.write([theirs], [])
    assert ledger.interrupt() == 1
    assert ledger.interrupt() == 0
    assert ledger.open_rows() == 1, "the other server's row stays open"
    (found,) = used(database, UsageFilter(0, HOUR))
    assert (found.requests, found.interrupted, found.prompt_tokens) == (2, 1, 5)
    assert ledger.differences() == []


def test_an_interrupted_row_does_not_end_again(ledger: LedgerTable, database: Database) -> None:
    """If the rows of a running server were interrupted, their later ends are ignored, and sums stay correct."""
    one, other = entry(), entry()
    ledger.write([one], [])
    assert ledger.interrupt() == 1
    ledger.write([other], [done(one, 5), done(other, 7)])
    (found,) = used(database, UsageFilter(0, HOUR))
    assert (found.requests, found.interrupted, found.prompt_tokens) == (2, 1, 7)
    assert (ledger.differences(), ledger.open_rows()) == ([], 0)


def test_the_first_of_two_ends_of_a_row_counts(ledger: LedgerTable, database: Database) -> None:
    one = entry()
    ledger.write([one], [])
    ledger.write([], [done(one, 5), done(one, 7)])
    (found,) = used(database, UsageFilter(0, HOUR))
    assert (found.requests, found.prompt_tokens) == (1, 5)
    assert ledger.differences() == []


def test_differences_report_manual_changes(ledger: LedgerTable, database: Database) -> None:
    entries = [entry(team="a"), entry(team="b")]
    ledger.write(entries, [done(one, 5) for one in entries])
    with database.write() as connection:
        connection.execute(sa.text("UPDATE ledger SET prompt_tokens = 6 WHERE team = 'b'"))
    (found,) = ledger.differences()
    assert found.names[0] == "b"
    assert (found.rows[2], found.sums[2]) == (6, 5)
    with database.write() as connection:
        connection.execute(sa.text("DELETE FROM ledger"))
    assert len(ledger.differences()) == 2


def test_sums_are_grouped_and_filtered(ledger: LedgerTable, database: Database) -> None:
    entries = [
        entry(0, team="a"), entry(HOUR, team="a", model="n"), entry(DAY, team="b", adapter="x@sha256:1"),
        entry(DAY - 1, team="a"),
    ]  # fmt: skip
    ledger.write(entries, [done(one, 1) for one in entries])

    def names(
        *by: Grouping, begin: int = 0, end: int = 2 * DAY, team: str | None = None
    ) -> dict[tuple[object, ...], int]:
        return {one.names: one.requests for one in used(database, UsageFilter(begin, end, by, team))}

    assert names() == {(): 4}
    assert names(Grouping.TEAM) == {("a",): 3, ("b",): 1}
    assert names(Grouping.DAY) == {(0,): 3, (DAY,): 1}
    assert names(Grouping.HOUR, Grouping.MODEL) == {(0, "m"): 1, (HOUR, "n"): 1, (23 * HOUR, "m"): 1, (DAY, "m"): 1}
    assert names(Grouping.ADAPTER, begin=DAY) == {("x@sha256:1",): 1}
    assert names(Grouping.TEAM, team="b") == {("b",): 1}
    assert names(Grouping.TEAM, end=HOUR) == {("a",): 1}
    assert names(Grouping.CLASS, Grouping.ENDPOINT, Grouping.KEY) == {
        ("interactive", "/v1/chat/completions", "key00000"): 4
    }


def test_usage_is_read_in_pages_of_buckets(
    ledger: LedgerTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry(0, team="a"), entry(HOUR, team="a"), entry(HOUR + 1, team="b")]
    ledger.write(entries, [done(one, 3) for one in entries])
    names = ("project_id", "api_key_id", "model", "batch", "service_tier")
    page = page_of(database, UsageQuery(0, 2 * HOUR, "1h", group_by=names, models=("m",), batch=False))
    found = [(bucket.begin, one["project_id"], one["batch"], one["service_tier"], one["prompt_tokens"])
             for bucket in page.buckets for one in bucket.results]  # fmt: skip
    assert [(*row[:2], bool(row[2]), *row[3:]) for row in found] == [
        (0, "a", False, "default", 3), (HOUR, "a", False, "default", 3), (HOUR, "b", False, "default", 3),
    ]  # fmt: skip
    assert [len(bucket.results) for bucket in page_of(database, UsageQuery(0, 2 * DAY)).buckets] == [1, 0]
    monkeypatch.setattr("tenants.ledger.organization.MOST_READ", 3)
    late, open_ = entry(HOUR + 59.9, team="a"), entry(HOUR + 30)
    ledger.write([late], [done(late, 5)])
    minutes = page_of(database, UsageQuery(HOUR, HOUR + 120, "1m", group_by=names))
    assert [(b.begin, [(one["project_id"], one["prompt_tokens"]) for one in b.results]) for b in minutes.buckets] == [
        (HOUR, [("a", 8), ("b", 3)]), (HOUR + 60, []),
    ]  # fmt: skip
    ledger.write([open_], [])
    with pytest.raises(BadRequest, match="more than 3 requests"):
        page_of(database, UsageQuery(HOUR, HOUR + 120, "1m"))


def test_the_rows_of_a_report_are_bounded(
    ledger: LedgerTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_ROWS", 2)
    entries = [entry(hour * HOUR) for hour in range(3)]
    ledger.write(entries, [done(one) for one in entries])
    assert len(used(database, UsageFilter(0, 2 * HOUR, (Grouping.HOUR,)))) == 2
    with pytest.raises(BadRequest, match="more than 2 rows"):
        used(database, UsageFilter(0, 3 * HOUR, (Grouping.HOUR,)))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
@pytest.mark.long
def test_sums_equal_the_rows_for_any_writes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    database = open_tables(tmp_path_factory.mktemp("ledger"))
    ledger = LedgerTable(database, "server-1")
    running: list[Entry] = []
    tokens = requests = 0
    for step in data.draw(st.lists(st.sampled_from(["write", "again", "kill"]), max_size=12)):
        if step == "kill":
            requests += ledger.interrupt()
            running = []
            continue
        names = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9 * HOUR)), max_size=5))
        begun = [entry(at, team=team) for team, at in names]
        running += begun
        ended = [done(one, data.draw(st.integers(0, 2**40))) for one in running if data.draw(st.booleans())]
        ledger.write(begun, ended)
        if step == "again":
            ledger.write([], ended, again=True)
        running = [one for one in running if one not in [end.entry for end in ended]]
        tokens += sum(end.prompt_tokens for end in ended)
        requests += len(ended)
    (found,) = used(database, UsageFilter(0, DAY))
    assert (found.prompt_tokens, found.requests) == (tokens, requests)
    assert ledger.open_rows() == len(running)
    assert ledger.differences() == []
    database.close()


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ((None, None, None), (20_000 * DAY, 20_001 * DAY)),
        (("1970-01-02", None, None), (DAY, 2 * DAY)),
        ((None, "1970-01-02", "1970-01-04"), (DAY, 3 * DAY)),
        ((None, "3600", "7200"), (3600, 7200)),
        ((None, "1970-01-02", None), (DAY, 20_001 * DAY)),
    ],
)
def test_times_are_read_as_spans(
    requested: tuple[str | None, str | None, str | None], expected: tuple[int, int]
) -> None:
    assert span(*requested, now=20_000 * DAY + 5.0) == expected


@pytest.mark.parametrize(
    "requested",
    [
        ("today", None, None), ("1970-13-01", None, None), ("1970-01-01", "1970-01-01", None), (None, "5", "5"),
        (None, "1795000000000", None), (None, "-5", None), (None, "²", None), ("9999-12-31", None, None),
        ("20260101", None, None), (None, "9" * 5000, None),
    ],
)  # fmt: skip
def test_invalid_times_are_refused(requested: tuple[str | None, str | None, str | None]) -> None:
    with pytest.raises(BadRequest):
        span(*requested, now=0.0)


@pytest.mark.parametrize(
    ("requested", "param", "text"),
    [
        ((None, "1970-01-03", None), "from", "in the future"),
        ((None, None, "1970-01-01"), "to", "give 'from' as well"),
        ((None, "7200", "3600"), "to", "'to' must be after 'from'"),
    ],
)
def test_a_refused_span_names_what_was_given(
    requested: tuple[str | None, str | None, str | None], param: str, text: str
) -> None:
    with pytest.raises(BadRequest, match=text) as refused:
        span(*requested, now=DAY + 5.0)
    assert refused.value.param == param


def test_groupings_are_read_in_order() -> None:
    assert parse_groupings(["team,model", "day", "team"]) == (Grouping.TEAM, Grouping.MODEL, Grouping.DAY)
    assert parse_groupings([]) == ()
    with pytest.raises(BadRequest, match="team, key, model"):
        parse_groupings(["password"])


def test_rows_with_the_same_request_id_differ_by_uid(ledger: LedgerTable, database: Database) -> None:
    """Clients may send the same X-Request-Id twice."""
    one = entry()
    ledger.write([one, replace(one, uid="other")], [done(one, 3)])
    assert used(database, UsageFilter(0, HOUR))[0].requests == 1
    assert ledger.open_rows() == 1
