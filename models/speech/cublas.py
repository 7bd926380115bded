"""cuBLAS for CTranslate2, which opens `libcublas.so.12` by name at its first use: torch for CUDA 13 brings `.so.13`.

The package nvidia-cublas-cu12 puts the library into a folder where nobody looks by himself. Opened from there once, for
the whole process, it is found by its name.
"""

import ctypes
import importlib.util
from pathlib import Path

from registry.errors import EngineFailed

LIBRARIES = ("libcublasLt.so.12", "libcublas.so.12")
"""The first is needed by the second."""


def load_cublas() -> None:
    """Raises EngineFailed where it is missing. Safe to call often."""
    for name in LIBRARIES:
        try:
            ctypes.CDLL(str(found(name) or name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise EngineFailed(
                f"speech on a GPU needs {name} of CUDA 12, which could not be opened ({error}): install the package "
                "nvidia-cublas-cu12, as requirements/cuda.txt has it"
            ) from None


def found(name: str) -> Path | None:
    """The library of the package, if it is installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for folder in folders if (file := Path(folder, "cublas", "lib", name)).is_file()), None)
