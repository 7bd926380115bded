"""Waiting for what must come, however slow the machine is: no test decides by time."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600.0
"""Seconds after which what has not come is not coming. Only a test that fails waits so long."""
STEP, LONG_STEP = 0.02, 0.1
"""Seconds between looks, at first and after the first second: a look costs a server and its client processor time."""
TURNS, IDLE_SECONDS = 5_000_000, 0.06
"""Turns of an empty loop, and the seconds that they take on an idle core."""
Seen = TypeVar("Seen")


def eventually(
    look: Callable[[], Seen], reported: Callable[[], object] = lambda: "", seconds: float = PATIENCE
) -> Seen:
    """What `look` sees as soon as it is true of anything. In time `reported` says why it is not."""
    began = time.monotonic()
    while not (seen := look()):
        waited = time.monotonic() - began
        assert waited < seconds, reported() or seen
        time.sleep(STEP if waited < 1 else LONG_STEP)
    return seen


def slowness() -> float:
    """How many times longer this machine needs now than an idle core does; at least 1.

    For bounds that a server must have in real seconds, such as that after which an engine counts as hung.
    """
    began = time.monotonic()
    for _ in range(TURNS):
        pass
    return max(1.0, (time.monotonic() - began) / IDLE_SECONDS)
