"""Clocks that only move when a test moves them."""

from tenants.limits.meters import SECOND


class Clock:
    """A clock of seconds; a test sets `now`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class LimiterClock:
    """The two clocks of a limiter: monotonic nanoseconds, and seconds since the epoch."""

    def __init__(self, wall: float = 1_790_000_000.0) -> None:
        self.ns, self.wall_now = 10**12, wall

    def __call__(self) -> int:
        return self.ns

    def wall(self) -> float:
        return self.wall_now

    def pass_(self, seconds: float) -> None:
        self.ns += round(seconds * SECOND)
        self.wall_now += seconds
