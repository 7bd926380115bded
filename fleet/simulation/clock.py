"""The heap of events: virtual time jumps from one to the next."""

import heapq
from collections.abc import Callable
from typing import Any


class VirtualClock:
    """Time begins at 0. Events of one moment happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action, args))

    def run(self, until: float) -> None:
        """Let everything happen up to a moment."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action, args = heapq.heappop(events)
            action(*args)
        self.now = until
