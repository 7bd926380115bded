"""cuBLAS, which CTranslate2 opens by name, is loaded before that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.native import cache_folder
from models.speech import libraries
from registry.errors import EngineFailed

PROBE = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
try:
    ctypes.CDLL("libcublas.so.12")
    print("installed")
except OSError:
    from models.speech.libraries import load_cublas
    load_cublas()
    load_cublas()
    print(ctypes.CDLL("libcublas.so.12").answer())
"""


def test_cublas_is_found_by_its_name_after_loading(tmp_path: Path) -> None:
    """As in the package, the second library needs the first, and neither is in a folder that the system searches."""
    folder = tmp_path / "nvidia" / "cublas" / "lib"
    folder.mkdir(parents=True)
    sources = ("int lt(void) { return 42; }", "int lt(void); int answer(void) { return lt(); }")
    for name, source in zip(libraries.LIBRARIES, sources, strict=True):
        file = tmp_path / f"{name}.c"
        file.write_text(source)
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(file)],
            check=True,
        )
    done = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("42", "installed")


def test_the_error_on_a_host_without_it_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "LIBRARIES", ("libcublas.so.0",))
    with pytest.raises(EngineFailed, match="nvidia-cublas-cu12"):
        libraries.load_cublas()


def test_compiled_kernels_are_cached_in_our_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": "/somewhere", "CUDA_CACHE_MAXSIZE": "1"})
    libraries.keep_compiled()
    assert os.environ["CUDA_CACHE_PATH"] == str(cache_folder("cuda"))
    assert os.environ["CUDA_CACHE_MAXSIZE"] == "1"
