"""Processor time of this process, for tests of costs that must not grow with a client's input."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def processor_time() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds since the beginning.

    Garbage collection is off meanwhile, since in a process that has imported engines it takes up to a second.
    """
    began, was_enabled = time.process_time(), gc.isenabled()
    gc.disable()
    try:
        yield lambda: time.process_time() - began
    finally:
        if was_enabled:
            gc.enable()
