"""The libraries of speech: AVX-512 and threads on a CPU, and cuBLAS on a GPU.

CTranslate2 opens `libcublas.so.12` by name at its first use; torch for CUDA 13 brings `.so.13`. The package
nvidia-cublas-cu12 puts the library into a folder that is not searched: opened from there once, it is found by its name.
"""

import ctypes
import importlib.util
import os
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
