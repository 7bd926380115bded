"""Set up the libraries of speech: AVX-512 and threads on a CPU, cuBLAS on a GPU, malloc, and no telemetry.

CTranslate2 opens `libcublas.so.12` by name at its first use, while torch for CUDA 13 installs `.so.13`. The package
nvidia-cublas-cu12 puts the library into a folder that is not searched; once opened from there, it is found by name.

The C library's memory is kept for short recordings, and returned during long ones. A pass of Whisper's encoder needs
arrays of up to 36 MB (more in models larger than the starter model). glibc gets pages from the system for each of them
and returns them when it is freed, and the system clears every page, which is a third of the encoder's CPU time. So on a
CPU the pages are kept. For the starter model this costs 175 MiB between recordings, and at most a third more memory
during several.

Freed memory is kept in a heap per thread, and over an hour of sound the heaps become fragmented. So during a long
recording freed memory is returned.
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
"""Features that CTranslate2's AVX-512 code requires."""


def widest_vectors() -> None:
    """Make CTranslate2 use AVX-512 if available, as by default it stops at AVX2.

    CTranslate2 reads the variable when it first computes. An existing setting is kept.
    """
    if features() >= AVX512:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")


def send_no_telemetry() -> None:
    """Keep ONNX Runtime from reporting to Microsoft and from storing an id of this machine in ~/.cache.

    Since 1.29 it does both on Linux unless this variable is set when it is imported.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def one_thread_for_numpy() -> None:
    """Use one thread for NumPy's small products, as a second one would only spin."""
    from threadpoolctl import ThreadpoolController

    ThreadpoolController().select(internal_api="openblas").limit(limits=1)


LIBRARIES = ("libcublasLt.so.12", "libcublas.so.12")
"""The second needs the first."""


def keep_compiled() -> None:
    """Store kernels compiled by the driver in a persistent folder.

    CTranslate2 has no code for GPUs newer than sm_86, so the first load on an H100 compiles its kernels. Call this
    before CUDA is first used. Existing settings are kept.
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
    """Return the package's library, or None if it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for folder in folders if (file := Path(folder, "cublas", "lib", name)).is_file()), None)


M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
LEAN = 4 << 20
"""Bytes from which an array gets its own pages, which are returned when it is freed."""
USUAL = 32 << 20
"""The threshold that glibc reaches by itself if large arrays are allocated and freed."""
KEPT = 1 << 30
"""Arrays smaller than this reuse freed memory, which is kept."""

_lock = threading.Lock()
_long = 0
_else = USUAL


def keep() -> None:
    """Keep the pages of large arrays for reuse from now on, except in `lean`."""
    global _else
    with _lock:
        _else = KEPT
        if not _long:
            _threshold(KEPT)


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Within the block, give large arrays their own pages, in all threads. May be nested."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        trim()


def trim() -> None:
    """Return free memory in the heaps of all threads to the system."""
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
    if not _call("mallopt", M_MMAP_THRESHOLD, size):  # glibc before 2.35 accepts only up to USUAL
        _call("mallopt", M_MMAP_THRESHOLD, min(size, USUAL))
    # free memory kept at the end of a heap: twice as much, as in glibc's own ratio
    _call("mallopt", M_TRIM_THRESHOLD, max(2 * USUAL, min(2 * size, KEPT)))


def _call(function: str, *arguments: int) -> int:
    try:
        return int(getattr(ctypes.CDLL(None), function)(*arguments))
    except AttributeError:  # another C library lacks the function
        return 1
