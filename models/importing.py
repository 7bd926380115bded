"""How heavy libraries are imported: one at a time, and without the garbage collector."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one = threading.RLock()


@contextmanager
def quickly() -> Iterator[None]:
    """Around imports that make hundreds of thousands of objects, of which none is garbage.

    The collector looks at all of them again and again: a tenth to a quarter of the time of vLLM's imports. In any
    thread; a second one waits.
    """
    with _one:
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was:
                gc.enable()
