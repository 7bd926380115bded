"""The fake driver, and the installed builds of vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rehearsal.card import ROOT

CUDA_BUILD = ROOT / ".venv-cuda" / "bin" / "python"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the driver's two libraries."""
    folder = tmp_path_factory.mktemp("driver")
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        source = str(Path(__file__).with_name("driver.c"))
        command = [os.environ.get("CC") or "cc", *flags, f"-Wl,-soname,{name}", "-o", str(folder / name), source]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def cuda_build() -> Path:
    """Return the CUDA build's Python, for the long form of the rehearsal."""
    if not CUDA_BUILD.exists():
        pytest.skip("scripts/install-cuda-rehearsal fetches the CUDA build")
    return CUDA_BUILD


@pytest.fixture(params=["cpu", "cuda"])
def python(request: pytest.FixtureRequest) -> Path:
    """Return the Python of each installed build."""
    return Path(sys.executable) if request.param == "cpu" else Path(request.getfixturevalue("cuda_build"))
