"""What a worker of LitServe's does by itself: it imports ahead once, and knows nothing of the gateway."""

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from litserve import LitServer

from runtime.link import SlotLink
from runtime.slot_loop import SlotServer
from runtime.worker import RuntimeAPI, RuntimeSpec, SlotLoop
from tests.fakes.engine import FakeEngine

NUMBER = """
import sys
from runtime.worker import SlotLoop
print([SlotLoop(sys.argv[1], ("vllm", "faster-whisper"))._warms() for _ in range(2)])
"""


def test_the_first_slots_of_a_run_import_one_engine_each(tmp_path: Path) -> None:
    """Each is a process of its own, and asks once; later lives get none."""
    said = [
        subprocess.run([sys.executable, "-c", NUMBER, str(tmp_path)], capture_output=True, text=True, timeout=240)
        for _ in range(3)
    ]
    assert [done.stdout.strip() for done in said] == [
        "['vllm', 'vllm']", "['faster-whisper', 'faster-whisper']", "[None, None]",
    ]  # fmt: skip


def test_a_worker_does_not_import_the_gateway() -> None:
    """Six of them start with the server, on the cores that the first load needs."""
    code = """
import sys, runtime.slot_process
from models.stand_ins import Stand
left_out = ("runtime.gateway", "sqlite3", "torch", "fastapi.applications", "litserve.server", "uvicorn", "typer")
print([m for m in left_out if m in sys.modules])
print([name for name, module in sys.modules.items() if isinstance(module, Stand)])
from fastapi import FastAPI, HTTPException
from litserve.utils import PickleableHTTPException
print(issubclass(PickleableHTTPException, HTTPException), FastAPI().version)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split("\n")[:3] == ["[]", "[]", "True 0.1.0"]


def test_what_a_worker_is_sent_needs_no_server() -> None:
    """LitServe gives each spec a method of its server."""
    spec = RuntimeSpec(cast(Any, None))
    spec.data_streamer = LitServer.data_streamer
    sent = pickle.dumps(RuntimeAPI(spec=spec, loop=SlotLoop("/run", ()), enable_async=False))
    assert b"litserve.server" not in sent
    assert b"fastapi" not in sent


async def test_a_slot_whose_import_fails_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fails(engine: str, hurried: object) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise ImportError(engine)

    monkeypatch.setattr("models.prewarm.prewarm", fails)
    address = str(tmp_path / "s.sock")
    server = SlotServer(address, lambda *_: FakeEngine(), exit_on_disconnect=False, warms="engine-a")
    serving = asyncio.create_task(server.serve())
    link = SlotLink(0, address, lambda link: None)
    await link.connect(200)
    assert link.prewarmed == "engine-a"
    await asyncio.wait_for(tried.wait(), 200)
    assert not serving.done()
    link.pid = 0  # it is this process
    server._stop.set()
    for writer in list(server._writers):
        writer.close()
    await serving
