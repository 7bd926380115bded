"""Import heavy libraries one at a time, without the garbage collector."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one = threading.RLock()


@contextmanager
def fast_imports() -> Iterator[None]:
    """Switch the garbage collector off around imports that make many objects.

    The collector would look at all of them again and again: a tenth to a quarter of the time of vLLM's imports, and a
    tenth when it is switched on again. So it never looks at what is there by then, nor copies its pages after a fork;
    some 4 % of that is garbage, which stays. In any thread; a second one waits.
    """
    with _one:
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            if was:
                gc.enable()
