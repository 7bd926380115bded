"""Python's heap in long-running processes: frozen start-up objects, logged slow collections."""

import gc
import logging
import time
from asyncio import AbstractEventLoop

LONG_SECONDS = 0.02
"""A collection of this length delays a token of every stream."""


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
        self._log.info("garbage was collected, and nothing else ran meanwhile", extra=found)
