"""Processor time of this process, for tests of what must not grow with what a client sends."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def processor_time() -> Iterator[Callable[[], float]]:
    """Yield what returns the seconds since the beginning.

    No garbage is collected meanwhile: where a process has imported engines, that alone takes up to a second.
    """
    began, was_enabled = time.process_time(), gc.isenabled()
    gc.disable()
    try:
        yield lambda: time.process_time() - began
    finally:
        if was_enabled:
            gc.enable()
