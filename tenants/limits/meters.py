"""How much of a limit is left. Times are monotonic nanoseconds, but for budgets, which go by the calendar."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tenants.limits.records import MINUTE

SECOND = 1_000_000_000
_WINDOW = MINUTE * SECOND


@dataclass(frozen=True, slots=True)
class LimitLeft:
    """For headers. seconds: until all of it is there again."""

    limit: int
    remaining: int
    seconds: float


@dataclass(slots=True)
class Hold:
    """What a request has reserved. mark: the meter's own."""

    amount: int
    mark: int


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

    def left(self, now: int) -> LimitLeft: ...


class Rate:
    """GCRA: a bucket of `limit` that `limit` a minute drains from. In whole numbers: a unit is one nanosecond's drain.

    What drained while a request held it is not given back at its end: the next one may have it already.
    """

    def __init__(self, limit: int, now: int) -> None:
        self.limit, self._level, self._at, self._drained = limit, 0, now, 0

    def change(self, limit: int, now: int) -> None:
        self._drain(now)
        self.limit = limit

    def _drain(self, now: int) -> None:
        gone = min(self._level, max(0, now - self._at) * self.limit)
        self._level -= gone
        self._drained += gone
        self._at = max(now, self._at)

    def wait(self, amount: int, now: int) -> float | None:
        if amount > self.limit:
            return None
        self._drain(now)
        over = self._level + (amount - self.limit) * _WINDOW
        return 0.0 if over <= 0 else math.ceil(over / self.limit) / SECOND

    def take(self, amount: int, now: int) -> Hold:
        self._drain(now)
        self._level += amount * _WINDOW
        return Hold(amount, self._drained)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        self._drain(now)
        if used >= hold.amount:
            self._level += (used - hold.amount) * _WINDOW
            return
        there = max(0, hold.amount * _WINDOW - (self._drained - hold.mark))
        self._level = max(0, self._level - min((hold.amount - used) * _WINDOW, there))

    def left(self, now: int) -> LimitLeft:
        self._drain(now)
        room = max(0, (self.limit * _WINDOW - self._level) // _WINDOW)
        return LimitLeft(self.limit, room, self._level / self.limit / SECOND)


class AtOnce:
    """How many are under way. Nobody knows when one ends: the wait is the mean of those before."""

    def __init__(self, limit: int) -> None:
        self.limit, self._running, self._seconds = limit, 0, 1.0

    def wait(self, amount: int, now: int) -> float | None:
        return 0.0 if self._running + amount <= self.limit else self._seconds

    def take(self, amount: int, now: int) -> Hold:
        self._running += amount
        return Hold(amount, now)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        self._running -= hold.amount
        self._seconds += 0.1 * ((now - hold.mark) / SECOND - self._seconds)

    def left(self, now: int) -> LimitLeft:
        return LimitLeft(self.limit, max(0, self.limit - self._running), self._seconds if self._running else 0.0)


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
        self._begin, self._end = period(wall())
        self._spent = spent
        """With what is reserved."""

    @property
    def begin(self) -> int:
        return self._begin

    @property
    def spent(self) -> int:
        self._turn()
        return self._spent

    def _turn(self) -> None:
        now = self._wall()
        if now >= self._end:
            (self._begin, self._end), self._spent = self._period(now), 0

    def wait(self, amount: int, now: int) -> float | None:
        self._turn()
        if amount == 0 or self._spent + amount <= self.limit:
            return 0.0
        return None if amount > self.limit else max(1.0, self._end - self._wall())

    def take(self, amount: int, now: int) -> Hold:
        self._turn()
        self._spent += amount
        return Hold(amount, self._begin)

    def settle(self, hold: Hold, used: int, now: int) -> None:
        """What began in the period before is charged there: the ledger counts it where it began."""
        self._turn()
        if hold.mark == self._begin:
            self._spent += used - hold.amount

    def left(self, now: int) -> LimitLeft:
        self._turn()
        return LimitLeft(self.limit, max(0, self.limit - self._spent), max(0.0, self._end - self._wall()))
