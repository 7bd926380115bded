"""Waiting for what must come, however slow the machine is: no test decides by time."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600.0
"""Seconds after which what has not come is not coming. Only a test that fails waits so long."""
STEP = 0.02
Seen = TypeVar("Seen")


def eventually(
    look: Callable[[], Seen], reported: Callable[[], object] = lambda: "", seconds: float = PATIENCE
) -> Seen:
    """What `look` sees as soon as it is true of anything. In time `reported` says why it is not."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, reported() or seen
        time.sleep(STEP)
    return seen
