"""Meters of what is left of a limit, in monotonic nanoseconds. Budgets follow the calendar."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from zoneinfo import ZoneInfo

from tenants.limits.records import MINUTE, Limit

SECOND = 1_000_000_000
_WINDOW = MINUTE * SECOND
_JOINED = 64
"""Settled holds that a rate's queue may contain before it is compacted."""
_PERIODS = 4
"""Number of budget periods that are remembered."""


@dataclass(frozen=True, slots=True)
class LimitLevel:
    """What is left of a limit, for headers. seconds: until the whole limit is available again."""

    limit: int
    remaining: int
    seconds: float


@dataclass(slots=True)
class Hold:
    """The reservation of a request. mark: for the meter's use. is_over: settled, for meters that need it."""

    amount: int
    mark: int
    is_over: bool = False


class Meter(Protocol):
    def wait(self, amount: int, now: int) -> float | None:
        """Return the seconds until `amount` fits, 0 if it fits now, None if it never will."""
        ...

    def take(self, amount: int, now: int) -> Hold:
        """Reserve `amount`, even if there is no room."""
        ...

    def settle(self, hold: Hold, used: int, now: int) -> None:
        """Return the unused part of a reservation, or charge what was used beyond it."""
        ...

    def level(self, now: int) -> LimitLevel: ...

    def change(self, limit: int, now: int) -> None:
        """Continue with another limit."""
        ...


class SharedMeter(Meter, Protocol):
    """A limit shared by several servers. Each takes parts of it and admits requests against those."""

    @property
    def is_unknown(self) -> bool:
        """Whether the other servers' usage cannot be determined now."""
        ...

    async def prepare(self, amount: int) -> bool:
        """Fetch a part if too little is here. Returns whether there was one; another request may use it first."""
        ...


class MeterSource(Protocol):
    """Makes the meters of a server that shares its limits with others."""

    def meter(self, limit: Limit, zone: ZoneInfo, since: int, spent: int) -> SharedMeter:
        """Return the meter of a rate or budget. since: start of its period; spent: spending in it so far."""
        ...

    def concurrency(self, limit: Limit) -> SharedMeter:
        """Return the meter of a limit on concurrent requests."""
        ...


class Rate:
    """GCRA: a bucket of size `limit` that drains at `limit` per minute. Integers; a unit is one nanosecond's drain.

    It drains in the order in which it was filled. A hold's mark is the part of it that has not drained yet. What
    drained while its request ran is not returned at the end, because the next request may have used it already.
    """

    def __init__(self, limit: int, now: int) -> None:
        self.limit, self._level, self._at = limit, 0, now
        self._line: deque[Hold] = deque()
        """Reservations in the order in which they drain. Their sum is the level."""
        self._longest = _JOINED

    def change(self, limit: int, now: int) -> None:
        self._drain(now)
        self.limit = limit

    def _drain(self, now: int) -> None:
        level = max(0, now - self._at) * self.limit
        self._at = max(now, self._at)
        while level and self._line:
            first = self._line[0]
            taken = min(level, first.mark)
            first.mark -= taken
            level -= taken
            self._level -= taken
            if not first.mark:
                self._line.popleft()

    def _add(self, hold: Hold) -> Hold:
        self._level += hold.mark
        self._line.append(hold)
        if len(self._line) > self._longest:
            self._join()
        return hold

    def _join(self) -> None:
        """Merge settled neighbours, so that the queue grows with running requests only."""
        line: deque[Hold] = deque()
        for hold in self._line:
            if hold.is_over and line and line[-1].is_over:
                line[-1].mark += hold.mark
            else:
                line.append(hold)
        self._line, self._longest = line, 2 * len(line) + _JOINED

    def wait(self, amount: int, now: int) -> float | None:
        if amount > self.limit:
            return None
        self._drain(now)
        over = self._level + (amount - self.limit) * _WINDOW
        return 0.0 if over <= 0 else math.ceil(over / self.limit) / SECOND

    def take(self, amount: int, now: int) -> Hold:
        self._drain(now)
        return self._add(Hold(amount, amount * _WINDOW))

    def settle(self, hold: Hold, used: int, now: int) -> None:
        self._drain(now)
        hold.is_over = True
        if used > hold.amount:
            extra = used - hold.amount
            self._add(Hold(extra, extra * _WINDOW, is_over=True))
            return
        unused = min((hold.amount - used) * _WINDOW, hold.mark)
        hold.mark -= unused
        self._level -= unused

    def level(self, now: int) -> LimitLevel:
        self._drain(now)
        room = max(0, (self.limit * _WINDOW - self._level) // _WINDOW)
        return LimitLevel(self.limit, room, self._level / self.limit / SECOND)


class Concurrency:
    """Concurrent requests. The predicted wait is the mean duration of past requests."""

    def __init__(self, limit: int) -> None:
        self.limit, self._running, self._seconds = limit, 0, 1.0

    def change(self, limit: int, now: int) -> None:
        self.limit = limit

    def wait(self, amount: int, now: int) -> float | None:
        return 0.0 if self._running + amount <= self.limit else self._seconds

    def take(self, amount: int, now: int) -> Hold:
        self._running += amount
        return Hold(amount, now)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        self._running -= hold.amount
        self._seconds += 0.1 * ((now - hold.mark) / SECOND - self._seconds)

    def level(self, now: int) -> LimitLevel:
        return LimitLevel(self.limit, max(0, self.limit - self._running), self._seconds if self._running else 0.0)


class Budget:
    """Money per day or month.

    Args:
        period: returns begin and end of the period around a moment, in seconds since the epoch.
        spent: spending so far in the current period.
        wall: returns seconds since the epoch.
    """

    def __init__(
        self, limit: int, period: Callable[[float], tuple[int, int]], spent: int, wall: Callable[[], float]
    ) -> None:
        self.limit, self._period, self._wall = limit, period, wall
        self.begin, self._end = period(wall())
        self._spent_in = {self.begin: spent}
        """Spent and reserved money by the period's start: the clock may be set back into an earlier period."""

    def change(self, limit: int, now: int) -> None:
        self.limit = limit

    @property
    def spent(self) -> int:
        self._turn()
        return self._spent_in[self.begin]

    def _turn(self) -> None:
        now = self._wall()
        if not self.begin <= now < self._end:
            self.begin, self._end = self._period(now)
            self._spent_in[self.begin] = self._spent_in.pop(self.begin, 0)  # keeps the newest last
            self._spent_in = dict(list(self._spent_in.items())[-_PERIODS:])

    def wait(self, amount: int, now: int) -> float | None:
        if amount == 0 or self.spent + amount <= self.limit:
            return 0.0
        return None if amount > self.limit else max(1.0, self._end - self._wall())

    def take(self, amount: int, now: int) -> Hold:
        self._turn()
        self._spent_in[self.begin] += amount
        return Hold(amount, self.begin)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        """Charge a request to the period in which it began, as the ledger does."""
        if hold.mark in self._spent_in:
            self._spent_in[hold.mark] += used - hold.amount

    def level(self, now: int) -> LimitLevel:
        room = max(0, self.limit - self.spent)
        return LimitLevel(self.limit, room, max(0.0, self._end - self._wall()))
