"""Python's heap in long-running processes: freeze start-up objects, log slow collections."""

import gc
import logging
import time
from asyncio import AbstractEventLoop

LONG_SECONDS = 0.02
"""A collection of this length delays a token in every stream."""
NOTICEABLE_SECONDS = 0.1
"""Collections of this length are logged at info. Shorter ones, which every import causes, are logged at debug."""


def freeze_heap() -> None:
    """Collect garbage, and exclude all remaining objects from later collections.

    Call it once a process has built what it keeps until it ends: a full collection would visit all of that while every
    stream waits.
    """
    gc.collect()
    gc.freeze()


class CollectionLog:
    """Logs collections that take `LONG_SECONDS` or more.

    Add it to `gc.callbacks`. It logs from `loop`, because a collection may start in the middle of a log call.
    """

    def __init__(self, loop: AbstractEventLoop, log: logging.Logger) -> None:
        self._loop, self._log = loop, log
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif (seconds := time.perf_counter() - self._began) >= LONG_SECONDS and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, seconds, info["generation"], info["collected"])

    def _note(self, seconds: float, generation: int, collected: int) -> None:
        details = {"seconds": round(seconds, 3), "generation": generation, "collected": collected}
        level = logging.INFO if seconds >= NOTICEABLE_SECONDS else logging.DEBUG
        self._log.log(level, "a garbage collection stopped all other work", extra=details)
