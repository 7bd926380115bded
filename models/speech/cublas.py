"""cuBLAS for CTranslate2, which opens `libcublas.so.12` by name at its first use: torch for CUDA 13 brings `.so.13`.

The package nvidia-cublas-cu12 puts the library into a folder where nobody looks by himself. Opened from there once, for
the whole process, it is found by its name.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

from models.native.cache_folder import cache_folder
from registry.errors import EngineFailed

LIBRARIES = ("libcublasLt.so.12", "libcublas.so.12")
"""The first is needed by the second."""


def keep_compiled() -> None:
    """Have the driver keep what it compiles: CTranslate2 has no code for GPUs newer than sm_86, so the first load on an
    H100 compiles its kernels, and by default they are kept in a home folder that a container may lose.

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
