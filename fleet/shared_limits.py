"""Limits of teams and keys that all servers of a fleet share, and this server's blocks of them.

| the fleet's database | a rate: requests, tokens, audio                | a budget                                  |
|----------------------|------------------------------------------------|-------------------------------------------|
| answers              | a block of this minute's amount                | a block of the day's or month's amount    |
| does not answer      | the rest of the block, then the amount / nodes | the rest of the block; then it is unknown |
|                      | per minute, counted on this server alone       | whether more is left (`is_unknown`)       |

Limits on requests at once have no window; see `fleet.at_once`.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from fleet.at_once import AtOnceMeter
from fleet.blocks import SHARES, LimitBlock
from fleet.grants import BlockTable, Grant, Period, Spent
from fleet.membership.at_once import AtOnceTable, Share
from registry.errors import Unavailable
from tenants.limits.meters import SECOND, Hold, LimitLevel, Rate
from tenants.limits.records import Kind, Limit

log = logging.getLogger("roundhouse.fleet")
ANSWER_SECONDS = 1.0
"""The database counts as away if it does not answer within this time."""
LOOK_SECONDS = 0.5
"""Seconds between checks for idle blocks, or for the return of the database."""
REFRESH_LOOKS, PRUNE_LOOKS = 4, 1200
"""Numbers of checks between reading what other servers have taken, and between deleting old windows."""
EMPTY_SECONDS = 0.25
"""Seconds after a grant that was too small before the database is asked again for as much."""
_PERIODS: dict[Kind, Period] = {Kind.DAY: "day", Kind.MONTH: "month"}
T = TypeVar("T")


@dataclass(slots=True)
class BlockHold(Hold):
    """A request's reservation in a block. `mark` is the window."""


class BlockMeter:
    """A rate or budget of which this server has a block: a `tenants.limits.meters.SharedMeter`."""

    def __init__(self, limit: Limit, zone: ZoneInfo, spent: Spent, server: "SharedLimits") -> None:
        self.described = limit
        """The limit as first set; `limit` has its current amount."""
        self.id, self.limit, self.zone, self.spent = limit.id, limit.amount, zone.key, spent
        self.period: Period = _PERIODS.get(limit.kind, "minute")
        self.block = LimitBlock()
        self._server, self._turn = server, asyncio.Lock()
        self._alone = None if limit.kind.is_spend else Rate(1, server.clock())
        """Counts a rate while the database is away."""
        self._window, self._granted, self._ends = 0, 0, 0.0
        self._empty: tuple[int, float] | None = None
        """The amount that was refused last, and until when not to ask again for it."""

    @property
    def is_unknown(self) -> bool:
        return self._alone is None and self._server.is_away

    @property
    def share(self) -> int:
        """The most that this server may keep unused."""
        return self.limit // (SHARES * self._server.nodes)

    def change(self, limit: int, now: int) -> None:
        self.limit, self._empty = limit, None

    # --- local counting ---------------------------------------------------------------------------------------------
    def wait(self, amount: int, now: int) -> float | None:
        if amount > self.limit:
            return None
        if not amount or not self.block.missing(amount, now / SECOND):
            return 0.0
        if self._alone is not None and self._server.is_away:
            rate = self._rate(self._alone, now)
            return rate.wait(min(amount, rate.limit), now)
        return max(1.0, self._ends - now / SECOND)

    def take(self, amount: int, now: int) -> Hold:
        seconds = now / SECOND
        if self._alone is not None and self._server.is_away and self.block.missing(amount, seconds):
            rate = self._rate(self._alone, now)
            return rate.take(min(amount, rate.limit), now)
        self.block.charge(amount, seconds)
        return BlockHold(amount, self.block.window)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        if isinstance(hold, BlockHold):
            self.block.release(hold.amount - used, hold.mark)
        elif self._alone is not None:
            self._rate(self._alone, now).settle(hold, used, now)

    def level(self, now: int) -> LimitLevel:
        """Return the level, by what all servers had taken as last read."""
        seconds = now / SECOND
        if seconds >= self._ends:
            return LimitLevel(self.limit, self.limit, 0.0)
        self.block.missing(0, seconds)
        own = self.block.left if self._window == self.block.window else 0
        left = max(0, min(self.limit, self.limit - self._granted + own))
        return LimitLevel(self.limit, left, self._ends - seconds if left < self.limit else 0.0)

    def _rate(self, rate: Rate, now: int) -> Rate:
        rate.change(self._server.part(self.limit), now)
        return rate

    # --- sharing ----------------------------------------------------------------------------------------------------
    async def prepare(self, amount: int) -> bool:
        """Take a block for a request if necessary. Returns whether enough was left for it.

        Another request on this server may use it first.
        """
        async with self._turn:
            now = self._server.clock() / SECOND
            missing = self.block.missing(amount, now)
            if not missing:
                return True
            if self._empty is not None and missing >= self._empty[0] and now < self._empty[1]:
                return False
            taken = await self._server.take(self, missing, now)
            if taken is None:
                return False
            is_enough = taken >= missing
            self._empty = None if is_enough else (missing, self._server.clock() / SECOND + EMPTY_SECONDS)
            if not is_enough:  # others may be able to use it
                self._server.give_back(self, self.block.surplus(0))
            return is_enough

    def granted(self, grant: Grant, sent: float) -> None:
        """Store a grant or level. sent: when the database was asked."""
        if grant.amount:
            self.block.add(grant.amount, grant.window, grant.seconds, sent)
        self._window, self._granted, self._ends = grant.window, grant.granted, sent + grant.seconds

    def returned(self, amount: int) -> None:
        self._granted = max(0, self._granted - amount)


class SharedLimits:
    """The `tenants.limits.meters.MeterSource` of a server in a fleet. For one event loop.

    Created before the fleet's database is open. There are no requests before `open`.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self.clock = clock
        self.is_away = False
        """Whether the database does not answer, or is not used."""
        self._is_refused = False
        self._table: BlockTable | None = None
        self._at_once: AtOnceTable | None = None
        self._names: Callable[[], Sequence[str]] = tuple
        self._own = ""
        self._meters: weakref.WeakSet[BlockMeter] = weakref.WeakSet()
        self._counts: weakref.WeakSet[AtOnceMeter] = weakref.WeakSet()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="limits")
        self._pending: set[asyncio.Future[Any]] = set()
        """Calls that the database has not answered yet."""
        self._task: asyncio.Task[None] | None = None

    def open(self, table: BlockTable, at_once: AtOnceTable, names: Callable[[], Sequence[str]], own: str) -> None:
        """Start using the database. names: returns those of the fleet's living nodes. own: this server's name."""
        self._table, self._at_once, self._names, self._own = table, at_once, names, own
        self._task = asyncio.create_task(self._keep(), name="limits")

    def refuse_database(self) -> None:
        """Stop using the database, which is in an older state. From now on it counts as away."""
        self.is_away = self._is_refused = True

    async def close(self) -> None:
        """Give back all blocks, if the database answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._settle()
        for meter in self._meters:
            meter.block.missing(0, self.clock() / SECOND)
            self.give_back(meter, meter.block.surplus(0))
        for count in list(self._counts):
            await count.look(is_last=True)
        await self._settle()
        self.is_away = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- meters -----------------------------------------------------------------------------------------------------
    def meters(self) -> list[BlockMeter]:
        """List the meters in use."""
        return list(self._meters)

    def meter(self, limit: Limit, zone: ZoneInfo, since: int, spent: int) -> BlockMeter:
        meter = BlockMeter(limit, zone, Spent(since, spent), self)
        self._meters.add(meter)
        return meter

    def concurrency(self, limit: Limit) -> AtOnceMeter:
        meter = AtOnceMeter(limit, self)
        self._counts.add(meter)
        return meter

    def counts(self) -> list[AtOnceMeter]:
        """List the meters of requests at once."""
        return list(self._counts)

    @property
    def nodes(self) -> int:
        return max(1, len(self._names()))

    def part(self, amount: int) -> int:
        """Return this server's part if no blocks can be taken; at least 1."""
        names = self._names()
        place = names.index(self._own) if self._own in names else self.nodes
        return max(1, amount // self.nodes + (place < amount % self.nodes))

    # --- the database -----------------------------------------------------------------------------------------------
    async def take(self, meter: BlockMeter, missing: int, now: float) -> int | None:
        """Take a block. Returns its size, or None if the database does not answer in time.

        A late answer is used as well.
        """
        table = self._table
        if self.is_away or table is None:
            return None
        capacity, nodes = meter.limit, self.nodes
        future = self._ask(
            lambda: table.take(meter.id, capacity, missing, nodes, meter.period, meter.zone, meter.spent)
        )
        future.add_done_callback(lambda done: None if _failed(done) else meter.granted(done.result(), now))
        return future.result().amount if await self.answers(future) else None

    def call(
        self, work: Callable[[AtOnceTable], Share], answered: Callable[[Share], None]
    ) -> "asyncio.Future[Share] | None":
        """See `fleet.at_once.ShareSource`."""
        table = self._at_once
        if self.is_away or table is None:
            return None
        future = self._ask(lambda: work(table))
        future.add_done_callback(lambda done: None if _failed(done) else answered(done.result()))
        return future

    def give_back(self, meter: BlockMeter, amount: int) -> None:
        """Give back a part without waiting. While the database is away, it is lost until the window ends."""
        table, window = self._table, meter.block.window
        if not amount or table is None or self.is_away:
            return
        meter.returned(amount)
        self._ask(lambda: table.give_back(meter.id, window, amount, meter.period)).add_done_callback(_failed)

    def _ask(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    async def _settle(self) -> None:
        """Wait for pending answers of the database, for a bounded time."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=ANSWER_SECONDS)

    async def answers(self, future: "asyncio.Future[T]") -> bool:
        """Whether the database answers within ANSWER_SECONDS. If not, it counts as away."""
        done, _ = await asyncio.wait({future}, timeout=ANSWER_SECONDS)
        if done and not isinstance(future.exception(), Unavailable):
            future.result()  # other errors are bugs
            return True
        if not self.is_away:
            log.error("the fleet's database does not answer; limits use this server's blocks only")
        self.is_away = True
        return False

    async def _keep(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            looks += 1
            try:
                await self._look(looks)
            except Exception:  # the next check may succeed
                log.exception("the fleet's limits could not be updated")

    async def _look(self, looks: int) -> None:
        table = self._table
        assert table is not None, "`open` was called"
        ids = [meter.id for meter in self._meters]
        if self._is_refused:
            return
        if self.is_away:
            with suppress(Unavailable):
                self._refresh(*await self._levels(table, ids))
                self.is_away = self._is_refused
                log.info("the fleet's database answers again")
            return
        for count in list(self._counts):
            await count.look(is_refresh=looks % REFRESH_LOOKS == 0)
        now = self.clock() / SECOND
        for meter in self._meters:
            self.give_back(meter, meter.block.idle(now) or meter.block.surplus(max(1, meter.share)))
        if looks % REFRESH_LOOKS == 0 and ids:
            asking = asyncio.ensure_future(self._levels(table, ids))
            asking.add_done_callback(_failed)
            if await self.answers(asking):
                self._refresh(*asking.result())
        if looks % PRUNE_LOOKS == 0:
            await self.answers(self._ask(table.prune))

    async def _levels(self, table: BlockTable, ids: Sequence[str]) -> tuple[float, dict[str, Grant]]:
        sent = self.clock() / SECOND
        return sent, dict(await self._ask(lambda: table.levels(ids)))

    def _refresh(self, sent: float, levels: dict[str, Grant]) -> None:
        for meter in self._meters:
            if (level := levels.get(meter.id)) is not None:
                meter.granted(level, sent)


def _failed(done: "asyncio.Future[T]") -> bool:
    """Return whether a future has no result. Reading its error keeps asyncio from logging it, as the caller does."""
    return done.cancelled() or done.exception() is not None
