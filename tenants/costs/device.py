"""How machine time is shared: requests that run at a time get equal parts.

While n requests run, each is charged 1/n of the time that passes; so the parts of all add up to the time in which
anything ran, and what is left is idle. O(1) a request: `_shared` is what somebody who was always there would have.
"""

import time
from collections.abc import Callable


class DeviceTime:
    """On one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at, self._running, self._shared = clock(), 0, 0.0
        self.busy = 0.0
        """Seconds in which something ran."""

    def _now(self) -> None:
        now = self._clock()
        if self._running:
            self.busy += now - self._at
            self._shared += (now - self._at) / self._running
        self._at = now

    def begin(self) -> float:
        """A mark for `end`."""
        self._now()
        self._running += 1
        return self._shared

    def end(self, mark: float) -> float:
        """Seconds of the machine that it is charged."""
        self._now()
        self._running -= 1
        return self._shared - mark
