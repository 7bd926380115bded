"""Waiting for conditions without depending on the machine's speed, because no test decides by time."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600.0
"""Seconds after which a condition counts as failed. Only a failing test waits that long."""
STEP, LONG_STEP = 0.02, 0.1
"""Seconds between checks in the first second and later, since a check costs server and client processor time."""
TURNS, IDLE_SECONDS = 5_000_000, 0.06
"""Iterations of an empty loop, and the seconds that they take on an idle core."""
Seen = TypeVar("Seen")


def eventually(
    look: Callable[[], Seen], reported: Callable[[], object] = lambda: "", seconds: float = PATIENCE
) -> Seen:
    """Call `look` until it returns something true, and return that. `reported` gives the message of a failure."""
    began = time.monotonic()
    while not (seen := look()):
        waited = time.monotonic() - began
        assert waited < seconds, reported() or seen
        time.sleep(STEP if waited < 1 else LONG_STEP)
    return seen


def slowness() -> float:
    """Return how many times slower this machine is now than an idle core; at least 1.

    Use it for bounds that a server needs in real seconds, such as the time after which an engine counts as hung.
    """
    began = time.monotonic()
    for _ in range(TURNS):
        pass
    return max(1.0, (time.monotonic() - began) / IDLE_SECONDS)
