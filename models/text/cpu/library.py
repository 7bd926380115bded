"""The compiled functions of this package, for CPUs with AVX-512: `int16.c` and `attention.c`.

Compiled once per machine, into the user's cache folder. Without such a processor or a compiler `load` returns None and
PyTorch computes what they would.
"""

import ctypes
import logging
import subprocess
from functools import cache
from pathlib import Path

from models.native import compiler as native
from models.native.cache_folder import cache_folder
from registry.base import processor

SOURCES = tuple(Path(__file__).with_name(name) for name in ("int16.c", "attention.c"))
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-shared", "-fPIC")
NEEDED = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
_WHOLE, _FLAG, _POINTER, _FLOAT = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_float
ARGUMENTS = {
    "multiply_int16": [
        _POINTER, _WHOLE, _POINTER, _WHOLE, _POINTER, _WHOLE, _FLAG, _POINTER, _POINTER, _WHOLE, _FLAG,
    ],
    "attend": [
        _POINTER, _WHOLE, _POINTER, _POINTER, _WHOLE, _POINTER, _WHOLE, _POINTER, _WHOLE, _FLAG, _WHOLE, _WHOLE, _FLOAT,
        _FLAG,
    ],
}  # fmt: skip
_log = logging.getLogger(__name__)


@cache
def load() -> ctypes.CDLL | None:
    """Blocks for some three seconds the first time on a machine. Safe in any thread."""
    if missing := NEEDED - processor.features():
        _log.info("embeddings and rerank compute with PyTorch: no %s here", ", ".join(sorted(missing)))
        return None
    try:
        library = ctypes.CDLL(str(native.build(cache_folder("native"), "cpu_models", SOURCES, FLAGS)))
        for name, arguments in ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as fault:
        _log.warning("embeddings and rerank compute with PyTorch, which is slower: %s", native.explain(fault))
        return None
    return library
