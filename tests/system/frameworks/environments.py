"""Environments beside ours, of clients and of public models; `scripts/install-clients` makes them."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.system.serving import ROOT


@cache
def _make(name: str) -> None:
    """Make an environment where it is not there yet, which needs a package index."""
    made = subprocess.run(["scripts/install-clients", name], cwd=ROOT, capture_output=True, text=True, timeout=800)
    if made.returncode:  # the packages of `make install-test` may all come from a cache: an index need not be there
        pytest.skip(f"scripts/install-clients could not make {name}: {made.stderr.strip()[-300:]}")


def interpreter(name: str) -> Path:
    """The Python of 'langchain' or 'others'."""
    _make(name)
    return ROOT / f".venv-{name}" / "bin" / "python"


def agents() -> Path:
    """The folder of the coding agents and of the clients in JavaScript."""
    _make("agents")
    return ROOT / ".clients-agents"


def models() -> Path:
    """The folder of packages with public models."""
    _make("models")
    (folder,) = (ROOT / ".venv-models/lib").glob("python3*/site-packages")
    return folder
