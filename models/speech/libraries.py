"""The libraries of speech: AVX-512 and threads on a CPU, cuBLAS on a GPU, and the C library's memory.

CTranslate2 opens `libcublas.so.12` by name at its first use; torch for CUDA 13 brings `.so.13`. The package
nvidia-cublas-cu12 puts the library into a folder that is not searched: opened from there once, it is found by its name.

The C library's memory is kept for short recordings, and returned in long ones. A pass of Whisper's encoder needs
arrays of up to 36 MB (the starter model; larger ones more). glibc takes pages from the system for each of them and
gives them back when it is freed, and the system clears every page: of the encoder's CPU time that was a third (330 to
430 ms a window, 235 without). So on a CPU the pages stay. That costs memory between recordings, of the starter model
175 MiB, and a third more than before at most, while it hears several.

What threads free for their next arrays lies in a heap for each thread; over an hour of sound the heaps fill with holes.
So while a long recording is heard, what is freed goes back. Measured with the starter model, an hour of which a sixth
is speech, MiB over the idle process at most: 256 to 295 without, 193 with this.
"""

import contextlib
import ctypes
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from models.native import cache_folder
from registry.base.processor import features
from registry.errors import EngineFailed

AVX512 = frozenset(("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"))
"""Features without which CTranslate2 raises when its AVX-512 paths are enabled."""


def widest_vectors() -> None:
    """Have CTranslate2 use AVX-512 where it exists; by itself it stops at AVX2.

    It reads this when it first computes. A setting that is there already stays.
    """
    if features() >= AVX512:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")


def one_thread_for_numpy() -> None:
    """Use one thread for NumPy's small products: a second one only spins."""
    from threadpoolctl import ThreadpoolController

    ThreadpoolController().select(internal_api="openblas").limit(limits=1)


LIBRARIES = ("libcublasLt.so.12", "libcublas.so.12")
"""The first is needed by the second."""


def keep_compiled() -> None:
    """Store what the driver compiles in a folder that outlives a container's home.

    CTranslate2 has no code for GPUs newer than sm_86, so the first load on an H100 compiles its kernels.

    Before CUDA is first used. Settings that are there already stay.
    """
    os.environ.setdefault("CUDA_CACHE_PATH", str(cache_folder("cuda")))
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))


def load_cublas() -> None:
    """Raises EngineFailed where it is missing. Safe to call often."""
    for name in LIBRARIES:
        try:
            ctypes.CDLL(str(find_library(name) or name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise EngineFailed(
                f"speech on a GPU needs {name} of CUDA 12, which could not be opened ({error}): install the package "
                "nvidia-cublas-cu12, as requirements/cuda.txt has it"
            ) from None


def find_library(name: str) -> Path | None:
    """The library of the package, if it is installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for folder in folders if (file := Path(folder, "cublas", "lib", name)).is_file()), None)


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
