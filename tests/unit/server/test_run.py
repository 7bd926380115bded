"""What the server process does before it forks the API process."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import gc, sys
from pathlib import Path
from litserve import LitServer
from runtime.server import run as server
from runtime.server.device import Device
from runtime.server.settings import Settings
from registry.recipes.loading import Documents

def run(self, **_):
    print(gc.get_freeze_count(), len(gc.get_objects()))

LitServer.run = run
folder = Path(sys.argv[1])
server.run(Settings(recipes=(), data_dir=folder, run_dir=folder), Documents(), Device("cpu", "cpu", "cpu", 1, 1))
"""


@pytest.mark.long
def test_the_collector_never_looks_at_what_was_imported(tmp_path: Path) -> None:
    """In the API process, a look at all objects would keep it from every stream for 80 ms."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=240
    )
    frozen, others = map(int, done.stdout.split())
    assert frozen > 50_000
    assert others < frozen / 20
