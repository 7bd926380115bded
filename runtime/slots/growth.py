"""Slots added while the server runs, bounded by a number and by free memory."""

import time
from collections.abc import Callable

from runtime.config.memory import slots_that_fit

MEASURE_SECONDS = 1.0
"""Seconds for which a measurement of free memory is cached, because the policy may need it at each decision."""


class SlotGrowth:
    """Limits how many slots may be added, and requests them.

    Args:
        most: maximum number of slots.
        start: makes the server's main process start the next slot. Returns at once.
        fit: number of slots that fit into free memory.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        most: int,
        start: Callable[[], None],
        fit: Callable[[], int] = slots_that_fit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._fit, self._clock = most, fit, clock
        self.start = start
        self._fitting, self._until = 0, 0.0

    def room(self, size: int, pending: int) -> int:
        """Return how many slots may be added to `size`. pending: slots among them that do not use their memory yet."""
        if size >= self._most:
            return 0
        if self._clock() >= self._until:
            self._fitting, self._until = self._fit(), self._clock() + MEASURE_SECONDS
        return max(0, min(self._most - size, self._fitting - pending))
