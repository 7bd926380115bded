"""Limits on requests at once of a team or key, of which this server may use its share.

| the database    | this server runs at most                                                                  |
|-----------------|-------------------------------------------------------------------------------------------|
| answers         | its share; the sum of all shares never exceeds the limit                                  |
| does not answer | its share, or its part if that is larger: the amount / nodes, but at least 1              |

An idle share is given back. A dead server's share is freed when its open rows in the ledger are ended.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from fleet.blocks import IDLE_SECONDS, SHARES
from fleet.membership.at_once import AtOnceTable, Share
from tenants.limits.meters import SECOND, Concurrency, Hold, LimitLevel
from tenants.limits.records import Limit


class ShareSource(Protocol):
    """The part of `fleet.shared_limits.SharedLimits` that a meter needs."""

    is_away: bool
    clock: Callable[[], int]

    @property
    def nodes(self) -> int: ...
    def part(self, amount: int) -> int: ...
    def call(
        self, work: Callable[[AtOnceTable], Share], answered: Callable[[Share], None]
    ) -> "asyncio.Future[Share] | None":
        """Call the database. Returns None if it is away. `answered` is called with the answer, even if it is late."""
        ...

    async def answers(self, future: "asyncio.Future[Share]") -> bool:
        """Wait up to ANSWER_SECONDS for an answer."""
        ...


class AtOnceMeter(Concurrency):
    """A `tenants.limits.meters.SharedMeter`, with one database call at a time."""

    is_unknown = False

    def __init__(self, limit: Limit, server: ShareSource) -> None:
        super().__init__(limit.amount)
        self.id, self.described, self._server = limit.id, limit, server
        self._share, self._all, self._used = 0, 0, 0
        self._turn = asyncio.Lock()
        self._pending: asyncio.Future[Share] | None = None
        self._is_read = False
        """Whether the last call was answered. If not, the database may have a share of an earlier run or call."""
        self._empty_until = 0
        """Time until which nothing is expected to be left."""

    @property
    def unused(self) -> int:
        """The number of further requests that may run here."""
        return max(0, self._most - self._running)

    @property
    def _most(self) -> int:
        return max(self._share, self._server.part(self.limit)) if self._server.is_away else self._share

    # --- local counting ---------------------------------------------------------------------------------------------
    def change(self, limit: int, now: int) -> None:
        self.limit, self._empty_until = limit, 0

    def wait(self, amount: int, now: int) -> float | None:
        return 0.0 if self._running + amount <= self._most else self._seconds

    def take(self, amount: int, now: int) -> Hold:
        self._used = now
        return super().take(amount, now)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        self._used = now
        super().settle(hold, used, now)

    def level(self, now: int) -> LimitLevel:
        """Return the level, by the others' shares as last read."""
        level = super().level(now)
        left = self.limit - max(self._all, self._share) + self._share - self._running
        return LimitLevel(self.limit, max(0, min(self.limit, left)), level.seconds)

    # --- sharing ----------------------------------------------------------------------------------------------------
    async def prepare(self, amount: int) -> bool:
        """Take a larger share for a request if necessary. Returns whether it is enough."""
        async with self._turn:
            needed, now = self._running + amount, self._server.clock()
            if needed <= self._most:
                return True
            if now < self._empty_until:
                return False
            await self._call(lambda table: table.take(self.id, self.limit, needed, self._server.nodes))
            if self._running + amount > self._most:
                self._empty_until = self._server.clock() + SECOND // 4
            return self._running + amount <= self._most

    async def look(self, *, is_refresh: bool = False, is_last: bool = False) -> None:
        """Give back an idle share, and read the others' shares. is_last: give back all that is unused.

        If more requests run than the share allows, the share grows: they began while the database was away.
        """
        async with self._turn:
            if self._running > self._share:
                needed = self._running
                await self._call(lambda table: table.take(self.id, self.limit, needed, self._server.nodes))
                return
            is_idle = is_last or self._server.clock() - self._used >= IDLE_SECONDS * SECOND
            spare = 0 if is_idle else self.limit // (SHARES * self._server.nodes)
            target = min(self._share, self._running + spare)
            is_known = self._is_read and not self._share and not self._running
            if target == self._share and (is_known or not is_refresh):
                return
            self._share = target
            await self._call(lambda table: table.give_back(self.id, target))

    async def _call(self, work: Callable[[AtOnceTable], Share]) -> None:
        self._is_read = False
        if self._pending is None or self._pending.done():
            self._pending = self._server.call(work, self._answered)
            if self._pending is not None:  # known before the wait, which ends early if a client leaves
                await self._server.answers(self._pending)

    def _answered(self, share: Share) -> None:
        self._share, self._all = share
        self._is_read = True
