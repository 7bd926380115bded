"""A slot's worker process: prewarming, process group, priority, and independence of the gateway."""

import asyncio
import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from litserve import LitServer

from models.process_control import OomPriority
from runtime.http.routes import routes
from runtime.server.hooks import RuntimeAPI, RuntimeSpec
from runtime.slots import worker
from runtime.slots.server import SlotServer
from runtime.slots.unix_link import UnixSlotLink
from runtime.slots.worker import SlotLoop, own_temporary_folder
from tests.fakes.engine import FakeEngine


def test_the_first_slots_of_a_run_import_one_engine_each() -> None:
    loop = SlotLoop("/run", ("vllm", "faster-whisper"))
    assert [loop.warms(slot) for slot in range(4)] == ["vllm", "faster-whisper", None, None]


def test_a_slots_temporary_folder_is_emptied_for_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setattr(tempfile, "tempdir", None)
    seen = []
    for slot in (0, 0, 1, 0):
        seen.append(own_temporary_folder(str(tmp_path), slot))
        left = Path(tempfile.gettempdir()) / "left"
        assert not left.exists()
        left.write_text("of a process that was killed")
    assert seen == [True, False, True, False]


def test_objects_of_a_load_are_left_out_of_garbage_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Including the engine's objects, which exist only after the load."""
    steps = list[str]()

    class Recorded(OomPriority):
        @contextlib.contextmanager
        def loads(self) -> Iterator[None]:
            yield
            steps.append("loaded")

    monkeypatch.setattr(worker, "freeze_heap", lambda: steps.append("frozen"))
    with worker._load_then_freeze(Recorded()):
        steps.append("built")
    assert steps == ["built", "loaded", "frozen"]


def test_a_worker_does_not_import_the_gateway() -> None:
    code = """
import sys, runtime.server.hooks, runtime.slots.worker
print([m for m in ("runtime.gateway.core", "runtime.http.routes", "sqlite3", "torch", "typer") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "[]\n"


def test_the_pickled_arguments_of_a_worker_import_no_server() -> None:
    """LitServe sets a method of its server on each spec."""
    spec = RuntimeSpec(routes())
    spec.data_streamer = LitServer.data_streamer
    sent = pickle.dumps(RuntimeAPI(spec=spec, loop=SlotLoop("/run", ()), enable_async=False))
    assert b"litserve.server" not in sent
    assert b"fastapi" not in sent


async def test_a_slot_whose_import_fails_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail(engine: str, hurried: object) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise ImportError(engine)

    monkeypatch.setattr("models.engines.prewarm", fail)
    address = str(tmp_path / "s.sock")
    server = SlotServer(address, lambda *_: FakeEngine(), exit_on_disconnect=False, warms="vllm")
    serving = asyncio.create_task(server.serve())
    link = UnixSlotLink(0, address, lambda link: None)
    await link.connect(200)
    assert link.prewarmed == "vllm"
    await asyncio.wait_for(tried.wait(), 200)
    assert not serving.done()
    link.pid = 0  # the slot runs in this process
    server._stop.set()
    for writer in list(server._writers):
        writer.close()
    await serving


def test_a_slot_has_its_own_process_group_in_the_servers_session() -> None:
    """In its own session it would get as large a share of the CPUs as the whole server (sched(7), autogroup)."""
    script = (
        "import os; from runtime.slots.worker import own_group; own_group();"
        "print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getsid(os.getppid()))"
    )
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert reported.split() == ["True", "True"]


def test_a_lower_priority_applies_to_all_threads_of_a_slot() -> None:
    script = """
import os, threading
from runtime.slots.worker import give_way

def nice():
    found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

found, started, over = [], threading.Event(), threading.Event()
before = os.getpriority(os.PRIO_PROCESS, 0)
early = threading.Thread(target=lambda: (started.set(), over.wait(), nice()))
early.start()
started.wait()
give_way(0)
nice()
give_way(7)
over.set()
early.join()
late = threading.Thread(target=nice)
late.start()
late.join()
nice()
print(*(value - before for value in found))
"""
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert reported.split() == ["0", "7", "7", "7"]
