"""The environment of the packages that do not fit beside ours; `scripts/install-langchain` makes it."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.system.serving import ROOT


@cache
def langchain() -> Path:
    """Its interpreter. The script makes the environment where it is not there yet, which needs a package index."""
    made = subprocess.run(["scripts/install-langchain"], cwd=ROOT, capture_output=True, text=True, timeout=800)
    if made.returncode:  # the packages of `make install-test` may all come from a cache: an index need not be there
        pytest.skip(f"scripts/install-langchain could not make .venv-langchain: {made.stderr.strip()[-300:]}")
    return ROOT / ".venv-langchain" / "bin" / "python"
