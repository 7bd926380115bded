"""Slots that a server adds while it runs, bounded by a number and by free memory."""

import time
from collections.abc import Callable

from runtime.config.memory import slots_that_fit

MEASURE_SECONDS = 1.0
"""Time for which a measurement of free memory counts: the policy may ask at each decision."""


class SlotGrowth:
    """How many slots may be added, and the request for one.

    Args:
        most: slots that there may be in the end.
        start: has the server's main process start the next slot. Returns at once.
        fit: slots that free memory has room for.
        clock: seconds that only rise.
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
        """The number of slots that may be added. pending: those whose memory is not in use yet, of `size` in all."""
        if size >= self._most:
            return 0
        if self._clock() >= self._until:
            self._fitting, self._until = self._fit(), self._clock() + MEASURE_SECONDS
        return max(0, min(self._most - size, self._fitting - pending))
