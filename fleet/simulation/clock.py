"""A virtual clock: a heap of events, between which time jumps."""

import heapq
from collections.abc import Callable
from typing import Any


class VirtualClock:
    """Starts at 0. Events at the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action, args))

    def run(self, until: float) -> None:
        """Run all events up to a time."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action, args = heapq.heappop(events)
            action(*args)
        self.now = until
