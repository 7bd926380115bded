"""Separate environments with clients and public models; `scripts/install-clients` makes them."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.system.serving import ROOT


@cache
def _make(name: str) -> None:
    """Make an environment if it does not exist yet, or skip the test if there is no package index."""
    done = subprocess.run(["scripts/install-clients", name], cwd=ROOT, capture_output=True, text=True, timeout=800)
    if done.returncode:
        pytest.skip(f"scripts/install-clients could not make {name}: {done.stderr.strip()[-300:]}")


def interpreter(name: str) -> Path:
    """Return the Python of `langchain` or `others`."""
    _make(name)
    return ROOT / f".venv-{name}" / "bin" / "python"


def agents() -> Path:
    """Return the folder with the coding agents and the JavaScript clients."""
    _make("agents")
    return ROOT / ".clients-agents"


def models() -> Path:
    """Return the folder of packages with public models."""
    _make("models")
    (folder,) = (ROOT / ".venv-models/lib").glob("python3*/site-packages")
    return folder
