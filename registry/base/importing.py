"""Import heavy libraries one at a time, without the garbage collector."""

import atexit
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_one = threading.RLock()
# Otherwise nanobind, which Triton uses, logs frozen objects as leaks at exit.
atexit.register(gc.unfreeze)
TRAINING = ("scipy", "sklearn")
"""Packages that transformers imports for training losses and metrics: 700 modules, half a second."""


@contextmanager
def fast_imports(*absent: str) -> Iterator[None]:
    """Turn the garbage collector off during imports that create many objects.

    The collector would visit all of them repeatedly, which takes a tenth to a quarter of the time of vLLM's imports,
    and another tenth once it is on again. So existing objects are frozen after the imports, which also saves copying
    their pages after a fork; about 4 % of them are garbage, which is never freed. Thread-safe: a second thread waits.

    absent: packages whose import fails during this, unless they are already imported. Only for processes whose other
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
