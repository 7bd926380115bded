"""Import heavy libraries one at a time, without the garbage collector."""

import atexit
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one = threading.RLock()
# Otherwise nanobind, which Triton uses, lists what the collector skips as leaked, in the server's log, at the exit.
atexit.register(gc.unfreeze)
TRAINING = ("scipy", "sklearn")
"""Packages that transformers imports for losses and scores of trainings: 700 modules, half a second."""


@contextmanager
def fast_imports(*absent: str) -> Iterator[None]:
    """Switch the garbage collector off around imports that make many objects.

    The collector would look at all of them again and again: a tenth to a quarter of the time of vLLM's imports, and a
    tenth when it is switched on again. So it never looks at what is there by then, nor copies its pages after a fork;
    some 4 % of that is garbage, which stays. In any thread; a second one waits.

    absent: packages that libraries find missing meanwhile, if nothing has imported them yet. For processes whose other
    threads import none of them.
    """
    with _one:
        hidden = [name for name in absent if name not in sys.modules]
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: its import fails
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            for name in hidden:
                del sys.modules[name]
            gc.freeze()
            if was:
                gc.enable()
