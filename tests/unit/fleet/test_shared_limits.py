"""A fleet's limits at one server: blocks, returned amounts, and a database that does not answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast
from zoneinfo import ZoneInfo

import pytest

from fleet import shared_limits
from fleet.blocks import IDLE_SECONDS, block_size
from fleet.grants import BlockTable, Grant, Spent
from fleet.membership.at_once import AtOnceTable, Share
from fleet.shared_limits import EMPTY_SECONDS, SharedLimits
from registry.errors import LimitExceeded, Unavailable
from tenants.caller import Caller
from tenants.limits.limiter import Admission, Amounts, Limiter
from tenants.limits.records import Kind, Limit, Mode
from tests.eventually import PATIENCE
from tests.fakes.clocks import LimiterClock

CALLER = Caller("search")
NODES = ("a", "b", "c")
ONE = Amounts(tokens=1, money=1, explicit_tokens=1)


class Table:
    """The fleet's database with one window of 30 seconds. Servers take blocks by the rules of `BlockTable`."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.shares = Shares(self)
        self.takes, self.is_away = 0, False
        self._alone = threading.Lock()
        self.go = threading.Event()
        self.go.set()

    def take(
        self, limit: str, capacity: int, reservation: int, nodes: int, period: str, zone: str, spent: Spent | None
    ) -> Grant:
        self.go.wait()
        self._answer()
        with self._alone:
            self.takes += 1
            amount = block_size(capacity, self.taken.get(limit, 0), reservation, nodes)
            self.taken[limit] = self.taken.get(limit, 0) + amount
            return Grant(amount, 60, 30.0, self.taken[limit])

    def give_back(self, limit: str, window: int, amount: int, period: str) -> None:
        self._answer()
        with self._alone:
            self.taken[limit] -= amount

    def levels(self, limits: Sequence[str]) -> Mapping[str, Grant]:
        self._answer()
        return {limit: Grant(0, 60, 30.0, self.taken[limit]) for limit in limits if limit in self.taken}

    def prune(self) -> int:
        return 0

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("no")


class Shares:
    """The database's limits of requests at once, like `AtOnceTable`. `of` returns one server's view."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.own: dict[str, int] = {}
        self.takes = 0

    def of(self, server: str) -> "ServerShares":
        return ServerShares(self, server)


class ServerShares:
    def __init__(self, shares: Shares, server: str) -> None:
        self._shares, self._server = shares, server

    def take(self, limit: str, capacity: int, amount: int, nodes: int) -> Share:
        self._shares.takes += 1
        self._shares.table._answer()
        own = self._shares.own.get(self._server, 0)
        block = block_size(capacity, sum(self._shares.own.values()), amount - own, nodes) if amount > own else 0
        self._shares.own[self._server] = own + block
        self._shares.table.go.wait()
        return Share(own + block, sum(self._shares.own.values()))

    def give_back(self, limit: str, amount: int) -> Share:
        self._shares.table._answer()
        own = self._shares.own[self._server] = min(amount, self._shares.own.get(self._server, 0))
        self._shares.table.go.wait()
        return Share(own, sum(self._shares.own.values()))


class Rig:
    """One server."""

    def __init__(self, table: Table, clock: LimiterClock, own: str, *limits: Limit) -> None:
        self.shared = SharedLimits(clock)
        self.limiter = Limiter(clock=clock, source=self.shared)
        self.limiter.replace(limits, {"search": ZoneInfo("UTC")})
        shares = cast(AtOnceTable, table.shares.of(own))
        self.shared.open(cast(BlockTable, table), shares, lambda: NODES, own)

    async def ask(self, most: Amounts = ONE) -> Admission:
        await self.limiter.prepare(CALLER, "m", most)
        return self.limiter.admit(CALLER, "m", most)

    async def refused(self, most: Amounts = ONE) -> LimitExceeded:
        with pytest.raises(LimitExceeded) as error:
            await self.ask(most)
        return error.value

    async def look(self, looks: int = 1) -> None:
        """Run the server's periodic task so many times."""
        await self.shared._look(looks)
        await self.shared._settle()

    def remaining(self, kind: Kind) -> int:
        return self.limiter.levels(CALLER, "m")[kind].remaining


def limit(kind: Kind, amount: int, mode: Mode = Mode.ENFORCE) -> Limit:
    return Limit(f"lim-{kind}", "team", "search", kind, amount, mode)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def clock() -> LimiterClock:
    return LimiterClock()


@pytest.fixture
async def rigs(
    table: Table, clock: LimiterClock, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Rig]]:
    """Three servers with the limits of the marker `limits`. Only the test runs their periodic task."""
    monkeypatch.setattr(shared_limits, "LOOK_SECONDS", PATIENCE)
    made = [Rig(table, clock, own, *request.param) for own in NODES]
    yield made
    table.go.set()
    for one in made:
        await one.shared.close()


def limits(*limits: Limit) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rigs", [limits], indirect=True, ids=["servers"])


@limits(limit(Kind.DAY, 45), limit(Kind.TOKENS, 1000))
async def test_a_hundred_simultaneous_requests_share_one_limit_over_three_servers(
    rigs: list[Rig], table: Table
) -> None:
    answers = await asyncio.gather(*(rigs[number % 3].ask() for number in range(100)), return_exceptions=True)
    refusals = [one for one in answers if isinstance(one, LimitExceeded)]
    assert 45 - 45 // 8 <= 100 - len(refusals) <= 45
    assert all("up to 1/8 of it may lie unused on other servers" in one.message for one in refusals)
    assert table.taken["lim-spend_per_day"] == 45
    assert table.takes < 100, "not every refusal asks the database"


@limits(limit(Kind.TOKENS, 1))
async def test_there_is_room_while_the_fleet_has_some_even_if_this_server_has_yet_to_fetch_it(rigs: list[Rig]) -> None:
    first, *_ = rigs
    assert first.limiter.has_room(CALLER, "m", ONE)
    await first.ask()
    assert not first.limiter.has_room(CALLER, "m", ONE)


@limits(limit(Kind.DAY, 45))
async def test_a_request_whose_block_is_used_by_another_takes_the_next_block(rigs: list[Rig], table: Table) -> None:
    """With blocks of one, a request that arrives together with another's block uses it first."""
    first, *_ = rigs
    table.go.clear()
    waiting = asyncio.create_task(first.ask())
    while not first.shared._pending:
        await asyncio.sleep(0)
    (arriving,) = first.shared._pending
    quick: list[Admission] = []
    arriving.add_done_callback(lambda _: quick.append(first.limiter.admit(CALLER, "m", ONE)))
    table.go.set()
    await waiting
    assert (len(quick), table.takes) == (1, 2)


@limits(limit(Kind.DAY, 48), limit(Kind.TOKENS, 1, Mode.WARN))
async def test_an_exceeded_limit_that_only_warns_refuses_no_simultaneous_request(rigs: list[Rig]) -> None:
    first, *_ = rigs
    await first.ask()
    assert len(await asyncio.gather(*(first.ask() for _ in range(40)))) == 40


@limits(limit(Kind.REQUESTS, 240))
async def test_a_block_serves_several_requests_and_is_returned_when_idle(
    rigs: list[Rig], table: Table, clock: LimiterClock
) -> None:
    first, second, _ = rigs
    for _ in range(7):
        first.limiter.settle(await first.ask(), ONE)
    assert (table.takes, table.taken["lim-requests_per_minute"]) == (1, 10)
    assert first.remaining(Kind.REQUESTS) == 233
    clock.pass_(IDLE_SECONDS / 2)
    await first.look()
    assert table.taken["lim-requests_per_minute"] == 10
    clock.pass_(IDLE_SECONDS / 2)
    await first.look()
    assert table.taken["lim-requests_per_minute"] == 7
    assert first.remaining(Kind.REQUESTS) == 233, "it knows what it returned"
    await second.look(looks=shared_limits.REFRESH_LOOKS)
    assert second.remaining(Kind.REQUESTS) == 233, "it sees the other servers' usage"


@limits(limit(Kind.TOKENS, 2400))
async def test_the_unused_part_of_a_large_reservation_is_returned_except_for_a_share(
    rigs: list[Rig], table: Table, clock: LimiterClock
) -> None:
    first, second, _ = rigs
    large = await first.ask(Amounts(tokens=2000, explicit_tokens=2000))
    await second.refused(Amounts(tokens=500, explicit_tokens=500))
    await second.look()
    first.limiter.settle(large, Amounts(tokens=200))
    await first.look()
    assert table.taken["lim-tokens_per_minute"] == 200 + 2400 // 24
    clock.pass_(EMPTY_SECONDS)
    await second.ask(Amounts(tokens=500, explicit_tokens=500))


@limits(limit(Kind.TOKENS, 2400))
async def test_a_refused_request_keeps_nothing(rigs: list[Rig], table: Table) -> None:
    first, second, third = rigs
    await first.ask(Amounts(tokens=2000, explicit_tokens=2000))
    await second.refused(Amounts(tokens=500, explicit_tokens=500))
    await second.look()
    assert table.taken["lim-tokens_per_minute"] == 2000
    await third.ask(Amounts(tokens=400, explicit_tokens=400))


@limits(limit(Kind.TOKENS, 2400))
async def test_a_refused_amount_does_not_refuse_a_smaller_one(rigs: list[Rig]) -> None:
    first, second, _ = rigs
    await first.ask(Amounts(tokens=2000, explicit_tokens=2000))
    await second.refused(Amounts(tokens=500, explicit_tokens=500))
    await second.shared._settle()  # it gives back what was too little
    await second.ask(Amounts(tokens=300, explicit_tokens=300))


@limits(limit(Kind.TOKENS, 2400), limit(Kind.AT_ONCE, 48))
async def test_a_server_that_stops_returns_all_that_it_does_not_use(rigs: list[Rig], table: Table) -> None:
    first, *_ = rigs
    first.limiter.settle(await first.ask(), ONE)
    assert (table.taken["lim-tokens_per_minute"], table.shares.own["a"]) == (100, 2)
    await first.shared.close()
    assert (table.taken["lim-tokens_per_minute"], table.shares.own["a"]) == (1, 0)


@limits(limit(Kind.DAY, 100))
async def test_usage_beyond_the_reservation_is_charged(rigs: list[Rig], table: Table) -> None:
    first, second, _ = rigs
    first.limiter.settle(await first.ask(), Amounts(money=50))
    first.limiter.settle(await first.ask(), Amounts(money=1))
    assert table.taken["lim-spend_per_day"] >= 51
    await second.refused(Amounts(money=60))


@limits(limit(Kind.DAY, 100), limit(Kind.TOKENS, 100, Mode.WARN))
async def test_a_limit_that_only_warns_admits_and_still_counts(rigs: list[Rig]) -> None:
    first, *_ = rigs
    for _ in range(2):
        admission = await first.ask(Amounts(tokens=80, explicit_tokens=80))
    assert admission.warnings == ["tokens per minute of team 'search': over 100"]


@limits(limit(Kind.DAY, 100))
async def test_a_block_ends_with_its_window(rigs: list[Rig], table: Table, clock: LimiterClock) -> None:
    first, *_ = rigs
    await first.ask(Amounts(money=100))
    refusal = await first.refused()
    assert refusal.retry_after == pytest.approx(30.0)
    clock.pass_(30.0)
    table.taken.clear()
    await first.ask(Amounts(money=100))


@limits(limit(Kind.AT_ONCE, 5))
async def test_requests_at_once_may_run_on_any_server_within_the_limit(
    rigs: list[Rig], table: Table, clock: LimiterClock
) -> None:
    first, second, third = rigs
    running = [await first.ask() for _ in range(4)]
    running.append(await second.ask())
    for rig in rigs:
        assert "requests at once of team 'search' is 5;" in (await rig.refused()).message
    assert (sum(table.shares.own.values()), third.remaining(Kind.AT_ONCE)) == (5, 0)
    takes = table.shares.takes
    await third.refused()
    assert table.shares.takes == takes, "the database was asked a moment ago"
    for one in running[:4]:
        first.limiter.settle(one, ONE)
    await first.look()
    clock.pass_(EMPTY_SECONDS)
    running = [await third.ask() for _ in range(4)]
    await first.refused()
    assert table.shares.own == {"a": 0, "b": 1, "c": 4}


@limits(limit(Kind.AT_ONCE, 2))
async def test_a_limit_of_fewer_requests_at_once_than_servers(rigs: list[Rig]) -> None:
    answers = await asyncio.gather(*(rig.ask() for rig in rigs), return_exceptions=True)
    assert sum(isinstance(one, LimitExceeded) for one in answers) == 1


@limits(limit(Kind.AT_ONCE, 48))
async def test_a_share_serves_several_requests_and_is_returned_when_idle(
    rigs: list[Rig], table: Table, clock: LimiterClock
) -> None:
    first, *_ = rigs
    running = [await first.ask() for _ in range(3)]
    assert table.shares.own == {"a": 4}
    for one in running:
        first.limiter.settle(one, ONE)
    await first.look()
    assert table.shares.own == {"a": 2}, "an eighth of the limit divided by three nodes"
    clock.pass_(IDLE_SECONDS)
    await first.look()
    assert table.shares.own == {"a": 0}


@limits(limit(Kind.AT_ONCE, 5))
async def test_a_share_changes_by_one_call_at_a_time_even_if_a_client_disconnects(
    rigs: list[Rig], table: Table
) -> None:
    first, second, _ = rigs
    table.go.clear()
    leaving = asyncio.create_task(first.ask())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    await first.shared._look(shared_limits.REFRESH_LOOKS)
    table.go.set()  # a late answer must not bring back what was given back after it
    await first.shared._settle()
    answers = await asyncio.gather(*(rig.ask() for rig in [second] * 5 + [first]), return_exceptions=True)
    assert sum(isinstance(one, Admission) for one in answers) == 5


@limits(limit(Kind.AT_ONCE, 5))
async def test_a_share_is_not_used_while_it_is_given_back(rigs: list[Rig], table: Table, clock: LimiterClock) -> None:
    first, *_ = rigs
    first.limiter.settle(await first.ask(), ONE)
    (count,) = first.shared.counts()
    assert count.unused == 1
    clock.pass_(IDLE_SECONDS)
    table.go.clear()
    looking = asyncio.create_task(first.shared._look(1))
    while table.shares.own["a"]:
        await asyncio.sleep(0.001)
    assert count.unused == 0
    table.go.set()
    await looking


@limits(limit(Kind.AT_ONCE, 5))
async def test_leftovers_of_an_earlier_run_are_returned(rigs: list[Rig], table: Table) -> None:
    first, *_ = rigs
    table.shares.own["a"] = 5
    await first.look(looks=shared_limits.REFRESH_LOOKS)
    assert table.shares.own["a"] == 0


@limits(limit(Kind.AT_ONCE, 5))
async def test_an_idle_share_is_returned_once_the_database_answers_again(
    rigs: list[Rig], table: Table, clock: LimiterClock
) -> None:
    first, *_ = rigs
    first.limiter.settle(await first.ask(), ONE)
    clock.pass_(IDLE_SECONDS)
    table.is_away = True
    await first.look()
    assert table.shares.own["a"] > 0, "the call failed"
    table.is_away = False
    await first.look()
    await first.look(looks=shared_limits.REFRESH_LOOKS)
    assert table.shares.own["a"] == 0


@limits(limit(Kind.AT_ONCE, 6))
async def test_while_the_database_is_down_a_server_uses_its_share_or_a_fixed_part(
    rigs: list[Rig], table: Table
) -> None:
    first, second, _ = rigs
    running = [await first.ask() for _ in range(5)]
    table.is_away = True
    for _ in range(2):
        await second.ask()
    await second.refused()
    assert second.shared.is_away
    first.limiter.settle(running[0], ONE)
    await first.ask()
    table.is_away = False
    await second.look()
    await second.refused()


@limits(limit(Kind.AT_ONCE, 6))
async def test_requests_that_began_while_the_database_was_down_count_once_it_answers(
    rigs: list[Rig], table: Table
) -> None:
    first, second, _ = rigs
    table.is_away = True
    for _ in range(2):
        await first.ask()
    await first.refused()
    await first.look()
    assert (first.shared.is_away, table.shares.takes) == (True, 1), "no request waits for it again"
    table.is_away = False
    for _ in range(2):
        await first.look()
    answers = await asyncio.gather(*(second.ask() for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(one, Admission) for one in answers) == 4


# --- a database that does not answer ---------------------------------------------------------------------------------
@limits(limit(Kind.DAY, 240), limit(Kind.TOKENS, 240))
async def test_while_the_database_is_down_blocks_are_used_up_and_rates_continue(
    rigs: list[Rig], table: Table, clock: LimiterClock
) -> None:
    first, *_ = rigs
    for _ in range(3):
        await first.ask()
    table.is_away = True
    for _ in range(7):
        await first.ask()
    with pytest.raises(Unavailable) as error:
        await first.ask()
    assert (error.value.code, error.value.retry_after) == ("limits_unavailable", 5)
    assert (await first.refused(Amounts(money=241))).retry_after is None, "it is too large whatever is left"
    free = Amounts(tokens=80, explicit_tokens=80)
    await first.ask(free)
    rate = await first.refused(free)
    assert rate.retry_after == pytest.approx(60.0), "a third of the rate, refilled as on a single server"
    clock.pass_(30.0)
    await first.ask(Amounts(tokens=40, explicit_tokens=40))
    table.is_away = False
    await first.look()
    table.taken.clear()
    await first.ask()


@limits(limit(Kind.TOKENS, 240))
async def test_what_a_request_leaves_of_a_rate_returns_to_it_while_the_database_is_down(
    rigs: list[Rig], table: Table
) -> None:
    first, *_ = rigs
    table.is_away = True
    large = await first.ask(Amounts(tokens=80, explicit_tokens=80))
    await first.refused()
    first.limiter.settle(large, Amounts(tokens=10))
    await first.ask(Amounts(tokens=70, explicit_tokens=70))
    await first.refused()


@limits(limit(Kind.DAY, 240))
async def test_a_hanging_database_counts_as_down_and_a_late_block_is_kept(
    rigs: list[Rig], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "ANSWER_SECONDS", 0.01)
    first, *_ = rigs
    table.go.clear()
    with pytest.raises(Unavailable):
        await first.ask()
    monkeypatch.setattr(shared_limits, "ANSWER_SECONDS", PATIENCE)
    table.go.set()
    async with asyncio.timeout(PATIENCE):
        while not table.takes:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    await first.look()
    takes = table.takes
    await first.ask()
    assert table.takes == takes == 1


@limits(limit(Kind.DAY, 240))
async def test_no_block_is_lost_when_a_client_disconnects(rigs: list[Rig], table: Table) -> None:
    first, *_ = rigs
    table.go.clear()
    leaving = asyncio.create_task(first.ask())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    table.go.set()
    await first.ask()
    await first.shared.close()
    assert table.taken["lim-spend_per_day"] == 1, "everything except for the admitted request was returned"
