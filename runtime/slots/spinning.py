"""An event loop that polls for a moment before it sleeps, while requests run.

To wake a process that sleeps takes 50 to 100 µs on an idle core of a virtual machine, and a token passes four such
wake-ups. A loop that polls takes a core instead, so it is for machines that have some to spare.
"""

import asyncio
import selectors
import time
from collections.abc import Callable


class SpinningSelector(selectors.EpollSelector):
    """Polls up to `seconds` before it sleeps, while `is_busy`."""

    def __init__(self, seconds: float, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._seconds, self._is_busy = seconds, is_busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (timeout is not None and timeout <= 0) or not self._is_busy():
            return super().select(timeout)
        end = time.monotonic() + (self._seconds if timeout is None else min(self._seconds, timeout))
        while not (events := super().select(0)):
            if time.monotonic() >= end:
                return super().select(None if timeout is None else max(0.0, timeout - self._seconds))
        return events


def event_loop(seconds: float, is_busy: Callable[[], bool]) -> asyncio.AbstractEventLoop:
    """A loop that polls while `is_busy`; asyncio's own if `seconds` is 0."""
    return asyncio.SelectorEventLoop(SpinningSelector(seconds, is_busy) if seconds else None)
