"""Python's heap in long-running processes: frozen start-up objects, logged slow collections."""

import gc
import logging
import time
from asyncio import AbstractEventLoop

LONG_SECONDS = 0.02
"""A collection of this length delays a token of every stream."""
NOTICEABLE_SECONDS = 0.1
"""One of this length is logged at info; shorter ones, of which each import brings some, at debug."""


def freeze_heap() -> None:
    """Collect garbage, and leave all that stays out of later collections.

    Call it once a process has built what it keeps until its end: a full collection looks at all of that, with every
    stream waiting.
    """
    gc.collect()
    gc.freeze()


class CollectionLog:
    """Logs collections that take `LONG_SECONDS` or more, from `loop`: in a collection itself a log may be half written.

    Put it into `gc.callbacks`.
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
        found = {"seconds": round(seconds, 3), "generation": generation, "collected": collected}
        level = logging.INFO if seconds >= NOTICEABLE_SECONDS else logging.DEBUG
        self._log.log(level, "a garbage collection stopped all other work", extra=found)
