"""Limits in the database, the initial levels after a kill, and simulations of limits."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from registry.errors import BadRequest, Conflict, LimitExceeded, NotFound, StorageExceeded, Unavailable
from registry.records import AdapterKey
from registry.storage.database import Database
from tenants.caller import Caller
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.ledger.ledger import Ledger
from tenants.ledger.pruning import prune
from tenants.ledger.rows import BATCH, Entry, Settlement
from tenants.ledger.table import LedgerTable
from tenants.limits import history
from tenants.limits.history import history_of
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.loader import LimitLoader
from tenants.limits.records import Kind, Limit, Mode
from tenants.limits.simulate import Outcome, simulate
from tenants.limits.stored import QueueLimiter, StorageLimiter
from tenants.limits.table import LimitTable
from tenants.storage.tables import LIMITS, TEAMS
from tests.fakes.clocks import Clock

NOW = 1_792_782_600.0  # 2026-10-23 19:10 UTC
KOLKATA = ZoneInfo("Asia/Kolkata")  # its days begin at 18:30 UTC


def entry(
    uid: str, at: float, team: str = "search", *, tokens: int = 0, micro: int = 0, request: str = "", attempt: int = 1
) -> Entry:
    return Entry(
        uid, request or uid, attempt, at, team, "key00001", "/v1/chat/completions", "m", "r", "", "interactive", "api",
        None, tokens, micro,
    )  # fmt: skip


def done(begun: Entry, tokens: int, micro: int, ms: int = 1000) -> Settlement:
    return Settlement(begun, "done", 200, None, tokens, cost_micro=micro, total_ms=ms)


def test_a_time_zone_that_this_machine_lacks_is_reported(database: Database, table: KeyTable, clock: Clock) -> None:
    """The database may be older than the machine's list of zones."""
    table.create_team("search")
    with database.write() as connection:
        connection.execute(sa.update(TEAMS).values(timezone="US/Atlantis"))
    with pytest.raises(Conflict, match="US/Atlantis, the time zone of team"):
        LimitTable(database, clock).zones()


def test_set_replaces_a_limit_and_add_does_not(database: Database, table: KeyTable, clock: Clock) -> None:
    table.create_team("search")
    key, _ = table.create(KeyRequest("search"))
    limits, before = LimitTable(database, clock), table.revision()
    first = limits.set(Limit("", "team", "search", Kind.TOKENS, 100))
    shadow = limits.set(Limit("", "team", "search", Kind.TOKENS, 50, Mode.SHADOW))
    assert shadow.id == first.id
    limits.set(Limit("", "team", "search", Kind.TOKENS, 10, model="m"))
    for amount in (1, 2):
        limits.add(Limit("", "team", "search", Kind.MONTH, amount, Mode.WARN))
    limits.set(Limit("", "key", key.id, Kind.AT_ONCE, 3))
    assert table.revision() == before + 6
    assert {(one.kind, one.amount, one.model) for one in limits.all("team", "search")} == {
        (Kind.TOKENS, 50, ""), (Kind.TOKENS, 10, "m"), (Kind.MONTH, 1, ""), (Kind.MONTH, 2, ""),
    }  # fmt: skip
    limits.remove(first.id)
    assert first.id not in {one.id for one in limits.all()}
    assert [one.kind for one in limits.all("key", key.id)] == [Kind.AT_ONCE]
    for missing in (Limit("", "team", "nobody", Kind.TOKENS, 1), Limit("", "key", "nobody", Kind.TOKENS, 1)):
        with pytest.raises(NotFound):
            limits.set(missing)
    with pytest.raises(NotFound):
        limits.remove("lim_0")


def test_a_team_sees_and_replaces_only_its_own_limits(database: Database, table: KeyTable, clock: Clock) -> None:
    limits, kinds = LimitTable(database, clock), (Kind.TOKENS, Kind.DAY)
    for team, amount in (("search", 1), ("speech", 2)):
        table.create_team(team)
        for kind in kinds:
            clock.now += 1
            limits.set(Limit("", "team", team, kind, amount))
    for team, amount in (("search", 1), ("speech", 2)):
        assert [(one.subject, one.kind, one.amount) for one in limits.all("team", team)] == [
            (team, kind, amount) for kind in kinds
        ]
    assert limits.all("team", "nobody") == []


def test_levels_after_a_kill_include_used_and_possibly_used_amounts(database: Database) -> None:
    """One request ended half a minute ago, one was interrupted, one was another team's, and one was yesterday."""
    ledger = LedgerTable(database, "s")
    ended, lost, other = entry("a", NOW - 30), entry("b", NOW - 10, tokens=300, micro=70), entry("c", NOW, "speech")
    early, yesterday = entry("d", NOW - 39 * 60), entry("e", NOW - 41 * 60)  # 18:31 and 18:29 UTC
    ledger.write([ended, lost, other, early, yesterday], [])
    ledger.write([], [done(ended, 400, 5), done(other, 9, 9), done(early, 1, 11), done(yesterday, 1, 1000)])
    assert ledger.interrupt() == 1
    limits = [
        Limit("t", "team", "search", Kind.TOKENS, 1000),
        Limit("d", "team", "search", Kind.DAY, 1000),
        Limit("k", "key", "key00001", Kind.DAY, 10_000),
        Limit("r", "team", "search", Kind.REQUESTS, 2),
    ]
    reported = history_of(database, limits, {"search": KOLKATA}, NOW)
    assert reported.spent == {"d": 5 + 70 + 11, "k": 5 + 70 + 11 + 1000 + 9}
    limiter = Limiter(clock=lambda: 10**12, wall=lambda: NOW)
    limiter.replace(limits, {"search": KOLKATA}, reported.recent, reported.spent)
    levels = limiter.levels(Caller("search", "key00001"), "m")
    assert levels[Kind.TOKENS].remaining == 800, "400 and, 20 s later, 300 more, of which 500 have drained"
    assert levels[Kind.REQUESTS].remaining == 1
    assert levels[Kind.DAY].remaining == 1000 - 86
    with pytest.raises(LimitExceeded):
        limiter.admit(Caller("search"), "m", Amounts(money=915))
    assert ledger.differences() == []


def test_a_restarted_server_counts_prompts_completions_and_recordings(database: Database) -> None:
    begun = entry("a", NOW - 1)
    ended = Settlement(begun, "done", 200, None, prompt_tokens=400, completion_tokens=70, audio_ms=9000)
    LedgerTable(database, "s").write([begun], [ended])
    [past] = history_of(database, [], {}, NOW).recent
    assert (past.used, past.age) == (Amounts(470, 9000, 0), 1)


def test_a_servers_spending_is_read_from_its_rows(database: Database, table: KeyTable, clock: Clock) -> None:
    """Open and interrupted requests count with their maximum cost."""
    table.create_team("search")
    limit = LimitTable(database, clock).set(Limit("", "team", "search", Kind.DAY, 1000))
    own, other = LedgerTable(database, "s"), LedgerTable(database, "t")
    ended, lost, running = entry("a", NOW), entry("b", NOW, micro=70), entry("c", NOW + 9, micro=600)
    before, foreign = entry("d", NOW - 9 * 60, micro=5000), entry("e", NOW, "speech", micro=5000)
    own.write([ended, lost, before, foreign], [done(ended, 400, 5)])
    assert own.interrupt() == 3
    own.write([running], [])
    other.write([entry("f", NOW, micro=5000)], [])
    spent = history.spending_of(database, "s")
    assert spent(limit.id, int(NOW)) == 5 + 70 + 600
    assert spent(limit.id, int(NOW) - 10 * 60) == 5 + 70 + 600 + 5000
    assert spent(limit.id, int(NOW) + 30) == 5 + 70 + 600, "a row may be slightly early"
    assert spent("gone", int(NOW)) is None
    list(prune(database, NOW + 2 * 3600))
    assert history.spending_of(database, "s")(limit.id, int(NOW)) is None, "its rows were deleted"


def test_a_servers_spending_is_read_once_for_all_budgets(database: Database, table: KeyTable, clock: Clock) -> None:
    """A fleet's server with a budget for each of 2,000 keys read all of its month's rows for each of them at start."""
    table.create_team("search")
    limits, ledger = LimitTable(database, clock), LedgerTable(database, "s")
    whole = limits.set(Limit("", "team", "search", Kind.MONTH, 1000))
    expected = {whole.id: 0}
    for number in range(1, 4):
        first, _ = table.create(KeyRequest("search"))
        second, _ = table.rotate(first.id, 60.0)
        of_all = limits.set(Limit("", "key", second.id, Kind.MONTH, 1000))
        of_one = limits.set(Limit("", "key", second.id, Kind.MONTH, 1000, model="m"))
        expected |= {of_all.id: 111 * number, of_one.id: 11 * number}
        expected[whole.id] += 111 * number
        for key, model, micro in ((first, "m", 1), (second, "m@2", 10), (second, "M", 100)):
            begun = replace(entry(f"{key.id}{model}", NOW), key=key.id, model=model)
            ledger.write([begun], [done(begun, 1, micro * number)])
    queries: list[str] = []
    sa.event.listen(database.engine, "after_cursor_execute", lambda *args: queries.append(args[2]))
    spent = history.spending_of(database, "s")
    assert {id_: spent(id_, int(NOW)) for id_ in expected} == expected
    assert sum("FROM ledger" in query for query in queries) == 1


def test_rows_in_the_future_of_a_clock_set_back_do_not_count_as_recent(database: Database) -> None:
    """Otherwise they could block a team for hours."""
    later = [entry(f"l{number}", NOW + 600 * number, tokens=300) for number in range(1, 20)]
    LedgerTable(database, "s").write(later, [done(one, 300, 1) for one in later])
    limit = Limit("t", "team", "search", Kind.TOKENS, 1000)
    assert history_of(database, [limit], {}, NOW).recent == []


async def test_the_ledger_is_queried_only_for_new_limits(
    database: Database, table: KeyTable, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[list[str]] = []

    def reported(_database: Database, limits: Sequence[Limit], *_: object) -> history.SpendingHistory:
        requested.append([limit.id for limit in limits])
        return history.SpendingHistory((), {})

    monkeypatch.setattr("tenants.limits.loader.history_of", reported)
    table.create_team("search")
    limits, limiter = LimitTable(database, clock), Limiter()
    loader = LimitLoader(limiter, Ledger(tmp_path))
    day = limits.set(Limit("", "team", "search", Kind.DAY, 100))
    await loader.read(database)
    admission = limiter.admit(Caller("search"), "m", Amounts(money=30))
    rate = limits.set(Limit("", "team", "search", Kind.TOKENS, 100))
    await loader.read(database)
    limits.set(Limit("", "team", "search", Kind.DAY, 50))
    table.create(KeyRequest("search"))
    await loader.read(database)
    assert limiter.levels(Caller("search"), "m")[Kind.DAY].remaining == 50 - 30
    limits.remove(rate.id)
    await loader.read(database)
    assert set(limiter.levels(Caller("search"), "m")) == {Kind.DAY}
    table.edit_team("search", timezone="Asia/Kolkata")
    await loader.read(database)
    assert requested == [[day.id], [rate.id], [day.id]], "its days have changed"
    limiter.settle(admission, Amounts())


async def test_batches_and_stored_adapters_have_limiters_of_their_own(
    database: Database, table: KeyTable, tmp_path: Path
) -> None:
    table.create_team("search")
    kinds = {Kind.REQUESTS: 1, Kind.BATCH_TOKENS: 100, Kind.ADAPTER_BYTES: 1000}
    for kind, amount in kinds.items():
        LimitTable(database).set(Limit("", "team", "search", kind, amount))
    limiter, storage, queue = Limiter(), StorageLimiter(), QueueLimiter()
    await LimitLoader(limiter, Ledger(tmp_path), storage, queue).read(database)
    assert set(limiter.levels(Caller("search"), "m")) == {Kind.REQUESTS}
    assert [queue.refusal("search", {"m": tokens}, {}) is None for tokens in (100, 101)] == [True, False]
    key = AdapterKey("m", "a", "search")
    storage.admit(key, list, "sha256:0", 1000)
    with pytest.raises(StorageExceeded) as refused:
        storage.admit(key, list, "sha256:0", 1001)
    assert [one.kind for one in refused.value.binding] == [Kind.ADAPTER_BYTES]


async def test_a_new_budget_counts_a_request_whose_end_the_ledger_was_yet_to_write(
    database: Database, table: KeyTable, tmp_path: Path
) -> None:
    class BusyLedger(Ledger):
        async def flush(self) -> None:
            ended = entry("a", time.time())
            LedgerTable(database, "s").write([ended], [done(ended, 0, 30)])

    table.create_team("search")
    LimitTable(database).set(Limit("", "team", "search", Kind.MONTH, 100))
    limiter = Limiter()
    await LimitLoader(limiter, BusyLedger(tmp_path)).read(database)
    assert limiter.levels(Caller("search"), "m")[Kind.MONTH].remaining == 70


async def test_a_new_budget_counts_the_ledgers_period_even_if_this_machines_clock_is_wrong(
    database: Database, table: KeyTable, tmp_path: Path
) -> None:
    ended, ledger = entry("a", NOW), Ledger(tmp_path)
    LedgerTable(database, "s").write([ended], [done(ended, 0, 30)])
    table.create_team("search")
    LimitTable(database).set(Limit("", "team", "search", Kind.MONTH, 100))
    ledger.clock = lambda: NOW + 60
    limiter = Limiter(wall=ledger.clock)
    await LimitLoader(limiter, ledger).read(database)
    assert limiter.levels(Caller("search"), "m")[Kind.MONTH].remaining == 70


async def test_ends_are_not_collected_while_the_ledger_cannot_be_read(
    database: Database, table: KeyTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take hours, during which requests that are refused end, too."""

    def broken(*_: object) -> history.SpendingHistory:
        raise Unavailable("no")

    monkeypatch.setattr("tenants.limits.loader.history_of", broken)
    table.create_team("search")
    LimitTable(database).set(Limit("", "team", "search", Kind.DAY, 100))
    limiter = Limiter()
    with pytest.raises(Unavailable):
        await LimitLoader(limiter, Ledger(tmp_path)).read(database)
    limiter.settle(limiter.admit(Caller("search"), "m", Amounts()), Amounts())
    assert limiter._ended is None


def test_a_simulated_limit_counts_refused_requests(database: Database) -> None:
    ledger = LedgerTable(database, "s")
    entries = [entry(f"{number:02}", NOW + number) for number in range(20)]
    ledger.write(entries, [])
    ledger.write([], [done(one, 100, 7, ms=2500) for one in entries])
    utc = ZoneInfo("UTC")

    def refused(kind: Kind, amount: int) -> int:
        found = simulate(database, Limit("", "team", "search", kind, amount), utc, NOW, NOW + 100)
        assert found.requests == 20
        return found.refused

    assert refused(Kind.REQUESTS, 60) == 0
    assert refused(Kind.REQUESTS, 6) == 20 - 6 - 1
    assert refused(Kind.TOKENS, 600) == 20 - 6 - 1
    assert refused(Kind.AT_ONCE, 2) == 20 - 14
    assert refused(Kind.DAY, 70) == 10
    assert simulate(database, Limit("", "team", "else", Kind.DAY, 1), utc, 0, NOW * 2).requests == 0


def test_a_simulation_has_the_times_of_the_first_and_last_refusal(database: Database) -> None:
    entries = [entry(f"{number}", NOW + number) for number in range(5)]
    LedgerTable(database, "s").write(entries, [done(one, 1, 10) for one in entries])
    limit = Limit("", "team", "search", Kind.DAY, 20)
    assert simulate(database, limit, ZoneInfo("UTC"), NOW, NOW + 60) == Outcome(5, 3, NOW + 2, NOW + 4)


def test_replayed_batch_lines_count_for_budgets_only(database: Database) -> None:
    entries = [replace(entry(f"{number}", NOW + number), source=BATCH) for number in range(5)]
    LedgerTable(database, "s").write(entries, [done(one, 100, 10) for one in entries])
    for kind, requests in ((Kind.REQUESTS, 0), (Kind.TOKENS, 0), (Kind.AT_ONCE, 0), (Kind.MONTH, 5)):
        limit = Limit("", "team", "search", kind, 20)
        assert simulate(database, limit, ZoneInfo("UTC"), NOW, NOW + 60).requests == requests


def test_a_replayed_recording_reserves_the_longest_one_until_it_ends(database: Database) -> None:
    """Each of three recordings of 10 s reserves 30 s, and only the first ends before the next begins."""
    entries = [replace(entry(f"{number}", NOW + number), reserved_audio_ms=30_000) for number in range(3)]
    ended = [
        Settlement(one, "done", 200, None, audio_ms=10_000, total_ms=ms)
        for one, ms in zip(entries, (500, 5000, 5000), strict=True)
    ]
    LedgerTable(database, "s").write(entries, ended)
    for seconds, refused in ((70, 0), (65, 1)):
        limit = Limit("", "team", "search", Kind.AUDIO, seconds * 1000)
        assert simulate(database, limit, ZoneInfo("UTC"), NOW, NOW + 60).refused == refused


@pytest.mark.parametrize("minutes", [40, 10, -50, 40 - 23 * 60 - 30])
def test_a_budget_counts_a_request_at_the_start_of_an_hour_once(database: Database, minutes: int) -> None:
    """The team's day begins at 18:30 UTC. Whole hours are read from sums, half hours from rows."""
    at = NOW - minutes * 60
    LedgerTable(database, "s").write([begun := entry("a", at)], [done(begun, 1, 7)])
    limit = Limit("l", "team", "search", Kind.DAY, 100)
    assert history_of(database, [limit], {"search": KOLKATA}, NOW).spent == {"l": 7}


def test_a_budget_counts_requests_whose_rows_were_deleted(database: Database) -> None:
    begun = [entry("a", NOW - 10 * 86_400), entry("b", NOW)]
    LedgerTable(database, "s").write(begun, [done(one, 1, 7) for one in begun])
    list(prune(database, NOW - 86_400))
    assert history_of(database, [Limit("l", "team", "search", Kind.MONTH, 100)], {}, NOW).spent == {"l": 14}


def test_a_limit_of_an_alias_names_the_model_that_counts(database: Database, table: KeyTable, clock: Clock) -> None:
    table.create_team("search")
    ledger, limits = LedgerTable(database, "s", "USD"), LimitTable(database, clock)
    for uid, model, name in (("1", "m", "chat"), ("2", "m", "m"), ("3", "m@2", "m@2"), ("4", "m@2", "m")):
        ledger.write([replace(entry(uid, clock()), model=model, asked=name)], [])
    with pytest.raises(BadRequest, match=r"'chat' is not the id of a model.*'m'"):
        limits.set(Limit("", "team", "search", Kind.TOKENS, 10, model="chat"))
    for model in ("m", "never-requested", ""):
        assert limits.set(Limit("", "team", "search", Kind.TOKENS, 10, model=model)).model == model


def test_usage_of_a_models_former_versions_counts_for_it(database: Database) -> None:
    ledger = LedgerTable(database, "s")
    entries = [replace(entry(model, NOW), model=model) for model in ("m", "m@1", "m@20", "m-2", "m2@1", "M@1")]
    ledger.write(entries, [done(one, 100, 7) for one in entries])
    utc = ZoneInfo("UTC")
    for model, count in (("m", 3), ("m@1", 1), ("", 6)):
        limit = Limit("l", "team", "search", Kind.DAY, 100, model=model)
        assert history_of(database, [limit], {}, NOW).spent == {"l": 7 * count}
        assert simulate(database, limit, utc, NOW, NOW + 1).requests == count


def test_a_keys_successors_share_its_limits(database: Database, table: KeyTable, clock: Clock) -> None:
    """This holds for limits on any of the keys, also from before the rotation."""
    utc, ledger, limits = ZoneInfo("UTC"), LedgerTable(database, "s"), LimitTable(database, clock)
    key, _ = table.create(KeyRequest("default"))
    spend = limits.set(Limit("", "key", key.id, Kind.MONTH, 1000))
    new, _ = table.rotate(key.id, 60.0)
    newest, _ = table.rotate(new.id, 60.0)
    with database.write() as connection:  # as an earlier version stored it, without the first key
        values = {"id": "old", "owner": "key", "subject": new.id, "kind": "requests_per_minute", "model": "",
                  "amount": 5, "mode": "enforce", "emails": [], "created": 1.0}  # fmt: skip
        connection.execute(sa.insert(LIMITS).values(values))
    for id_ in (key.id, new.id, newest.id):
        assert [one.id for one in limits.all("key", id_)] == ["old", spend.id]
    begun = [replace(entry(id_, NOW - 30, "default", micro=9), key=id_) for id_ in (key.id, newest.id)]
    ledger.write(begun, [done(one, 10, 100) for one in begun])
    reported = history_of(database, limits.all(), {key.id: utc}, NOW)
    assert reported.spent == {spend.id: 200}
    limiter = Limiter(clock=lambda: 10**12, wall=lambda: NOW)
    limiter.replace(limits.all(), {}, reported.recent, reported.spent)
    callers = [Caller("default", key.id), *(Caller("default", one.id, line=key.id) for one in (new, newest))]
    for caller in callers:
        assert limiter.levels(caller, "m")[Kind.MONTH].remaining == 800
    for caller in callers:
        limiter.admit(caller, "m", Amounts(money=100))
    assert {limiter.levels(caller, "m")[Kind.MONTH].remaining for caller in callers} == {500}
    found = simulate(database, Limit("", "key", newest.id, Kind.MONTH, 100), utc, NOW - 60, NOW)
    assert (found.requests, found.refused) == (2, 1)
    again = limits.set(Limit("", "key", newest.id, Kind.REQUESTS, 7))
    assert (again.id, again.subject) == ("old", key.id), "it replaces the existing limit"
    assert len(limits.all()) == 2


def test_a_request_with_many_attempts_is_simulated_as_one(database: Database) -> None:
    entries = [entry(f"{number}", NOW + number, request="r", attempt=number) for number in (1, 2, 3, 4)]
    LedgerTable(database, "s").write(entries, [done(one, 1, 1) for one in entries])
    limit = Limit("", "team", "search", Kind.REQUESTS, 1)
    assert simulate(database, limit, ZoneInfo("UTC"), NOW, NOW + 60) == Outcome(1, 0)


@pytest.mark.parametrize(("begin", "refused"), [(NOW - 50 * 60, 6), (NOW - 20 * 60, 5), (NOW, 5), (NOW + 5.5, 4)])
def test_a_simulated_budget_begins_with_its_periods_earlier_spending(
    database: Database, begin: float, refused: int
) -> None:
    """The simulations begin at 18:20, 18:50 and 19:10 UTC, and within the ten. 500 were spent before 18:30."""
    ledger = LedgerTable(database, "s")
    yesterday, early, later = entry("a", NOW - 41 * 60), entry("b", NOW - 39 * 60), entry("c", NOW - 15 * 60)
    entries = [entry(f"{number}", NOW + number) for number in range(10)]
    ledger.write([yesterday, early, later, *entries], [])
    ledger.write([], [done(yesterday, 1, 500), done(early, 1, 30), done(later, 1, 20)])
    ledger.write([], [done(one, 1, 10, ms=1) for one in entries])
    found = simulate(database, Limit("", "team", "search", Kind.DAY, 100), KOLKATA, begin, NOW + 100)
    assert found.refused == refused


def test_successive_attempts_at_a_request_count_as_one(database: Database) -> None:
    """Each second there is one request, whose second attempt begins after the first one failed."""
    ledger = LedgerTable(database, "s")
    firsts = [entry(f"{number}-1", NOW + number, request=f"r{number}") for number in range(10)]
    seconds = [entry(f"{number}-2", NOW + number + 0.5, request=f"r{number}", attempt=2) for number in range(10)]
    again = [entry(f"{number}-3", NOW + 20 + number, request="r3") for number in range(10)]
    ledger.write([*firsts, *seconds, *again], [])
    ledger.write([], [done(one, 100, 7, ms=400) for one in (*firsts, *seconds, *again)])

    def found(kind: Kind, amount: int) -> tuple[int, int]:
        limit = Limit("", "team", "search", kind, amount)
        reported = simulate(database, limit, ZoneInfo("UTC"), NOW, NOW + 100)
        return reported.requests, reported.refused

    assert found(Kind.REQUESTS, 60) == (20, 0)
    assert found(Kind.REQUESTS, 6) == (20, 20 - 6 - 2)
    assert found(Kind.AT_ONCE, 1) == (20, 0)
    assert found(Kind.DAY, 7 * 5) == (20, 18), "the third one's second attempt is refused"
