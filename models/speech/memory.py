"""Keep the C library's memory for short recordings, return it in long ones.

A pass of Whisper's encoder needs arrays of up to 36 MB (the starter model; larger ones more). glibc takes pages from
the system for each of them and gives them back when it is freed, and the system clears every page: of the encoder's
CPU time that was a third (330 to 430 ms a window, 235 without). So on a CPU the pages stay. That costs memory between
recordings, of the starter model 175 MiB, and a third more than before at most, while it hears several.

What threads free for their next arrays lies in a heap for each thread; over an hour of sound the heaps fill with holes.
So while a long recording is heard, what is freed goes back. Measured with the starter model, an hour of which a sixth
is speech, MiB over the idle process at most: 256 to 295 without, 193 with this.
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterator

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
LEAN = 4 << 20
"""Bytes from which on an array has pages of its own, which go back when it is freed."""
USUAL = 32 << 20
"""The threshold that glibc reaches by itself where large arrays come and go."""
KEPT = 1 << 30
"""Smaller arrays come from what was freed before, and stay there."""

_lock = threading.Lock()
_long = 0
_else = USUAL


def keep() -> None:
    """Keep pages of large arrays for the next ones from now on, except in `lean`."""
    global _else
    with _lock:
        _else = KEPT
        if not _long:
            _threshold(KEPT)


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Give large arrays pages of their own inside, in all threads. May be nested."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        trim()


def trim() -> None:
    """Give the system what lies free in between, in the heaps of all threads."""
    _call("malloc_trim", 0)


def _count(change: int) -> None:
    global _long
    with _lock:
        before, _long = _long, _long + change
        if not before or not _long:
            _threshold(LEAN if _long else _else)
        if not before:
            trim()


def _threshold(size: int) -> None:
    if not _call("mallopt", M_MMAP_THRESHOLD, size):  # before glibc 2.35 it takes no more than the usual
        _call("mallopt", M_MMAP_THRESHOLD, min(size, USUAL))
    # free memory at the end of a heap that stays: as glibc relates the two by itself, twice as much
    _call("mallopt", M_TRIM_THRESHOLD, max(2 * USUAL, min(2 * size, KEPT)))


def _call(function: str, *arguments: int) -> int:
    try:
        return int(getattr(ctypes.CDLL(None), function)(*arguments))
    except AttributeError:  # another C library has no such words
        return 1
