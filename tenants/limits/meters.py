"""Count what is left of a limit, in monotonic nanoseconds; budgets go by the calendar."""

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
"""Holds in a rate's line beyond those under way, before it is made shorter."""
_PERIODS = 4
"""Periods of a budget that are remembered."""


@dataclass(frozen=True, slots=True)
class LimitLevel:
    """A limit's level for headers. seconds: until all of it is there again."""

    limit: int
    remaining: int
    seconds: float


@dataclass(slots=True)
class Hold:
    """A request's reservation. mark: the meter's own; is_over: settled, for meters that need it."""

    amount: int
    mark: int
    is_over: bool = False


class Meter(Protocol):
    def wait(self, amount: int, now: int) -> float | None:
        """Seconds until there is room for it if nothing else comes; 0: there is; None: there never will be."""
        ...

    def take(self, amount: int, now: int) -> Hold:
        """Whether or not there is room."""
        ...

    def settle(self, hold: Hold, used: int, now: int) -> None:
        """Give back what was not used, or charge what was used beyond it."""
        ...

    def level(self, now: int) -> LimitLevel: ...

    def change(self, limit: int, now: int) -> None:
        """Go on with another limit."""
        ...


class SharedMeter(Meter, Protocol):
    """A limit that several servers share: each takes parts of it, and lets requests into these."""

    @property
    def is_unknown(self) -> bool:
        """Whether nobody can tell now how much the others have left of it."""
        ...

    async def prepare(self, amount: int) -> bool:
        """Take a part if there is too little here. Returns whether there was one; another request may use it first."""
        ...


class MeterSource(Protocol):
    """A maker of meters for a server that shares its limits with others."""

    def meter(self, limit: Limit, zone: ZoneInfo, since: int, spent: int) -> SharedMeter:
        """Make the meter of a rate or budget. since: when its period began; spent: what was spent in it so far."""
        ...

    def concurrency(self, limit: Limit) -> SharedMeter:
        """A meter for requests at once."""
        ...


class Rate:
    """GCRA: a bucket of `limit` that `limit` a minute drains from. In whole numbers: a unit is one nanosecond's drain.

    It drains in the order in which it was filled: a hold's mark is what is still there of it. What drained while a
    request held it is not given back at its end: the next one may have it already.
    """

    def __init__(self, limit: int, now: int) -> None:
        self.limit, self._level, self._at = limit, 0, now
        self._line: deque[Hold] = deque()
        """Amounts in the order in which they drain; together they are the level."""
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
        """Neighbours that are over become one, so that the line is no longer than the requests that are under way."""
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
    """Requests at once. The predicted wait is the mean duration of earlier ones."""

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
    """Money of a day or month.

    Args:
        period: begin and end of the one around a moment, in seconds since the epoch.
        spent: in the present one.
        wall: seconds since the epoch.
    """

    def __init__(
        self, limit: int, period: Callable[[float], tuple[int, int]], spent: int, wall: Callable[[], float]
    ) -> None:
        self.limit, self._period, self._wall = limit, period, wall
        self.begin, self._end = period(wall())
        self._spent_in = {self.begin: spent}
        """Spent and reserved money, by when a period began: a clock may be set back into one that was over."""

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
            self._spent_in[self.begin] = self._spent_in.pop(self.begin, 0)  # the newest is the last
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
