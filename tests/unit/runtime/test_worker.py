"""What a worker of LitServe's does by itself: it imports ahead once, and knows nothing of the gateway."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.link import SlotLink
from runtime.slot_loop import SlotServer
from runtime.worker import SlotLoop
from tests.fakes.engine import FakeEngine


def test_only_the_first_life_of_a_slot_imports_by_itself(tmp_path: Path) -> None:
    loop = SlotLoop(str(tmp_path), ("vllm", "faster-whisper"))
    assert [loop._warms(slot) for slot in range(3)] == ["vllm", "faster-whisper", None]
    assert [loop._warms(slot) for slot in range(3)] == [None, None, None]


def test_a_worker_does_not_import_the_gateway() -> None:
    """Six of them start with the server, on the cores that the first load needs."""
    code = "import sys, runtime.worker; print([m for m in ('runtime.gateway', 'sqlite3', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_slot_whose_import_fails_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fails(engine: str) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise ImportError(engine)

    monkeypatch.setattr("models.prewarm.prewarm", fails)
    address = str(tmp_path / "s.sock")
    server = SlotServer(address, lambda *_: FakeEngine(), exit_on_disconnect=False, warms="engine-a")
    serving = asyncio.create_task(server.serve())
    link = SlotLink(0, address, lambda link: None)
    await link.connect(5)
    assert link.prewarmed == "engine-a"
    await asyncio.wait_for(tried.wait(), 5)
    assert not serving.done()
    link.pid = 0  # it is this process
    server._stop.set()
    for writer in list(server._writers):
        writer.close()
    await serving
