"""How a chat engine's process ended, in words; which names of shared memory its processes leave."""

import asyncio
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from models.chat.processes import EngineProcesses, how_ended
from models.chat.vllm.cpu import shared_memory
from registry.base.control_groups import OomKills
from registry.errors import EngineFailed

FORK = multiprocessing.get_context("fork")
"""The method without a helper process of multiprocessing, which would outlive the test as pytest's child."""


def _child(code: int | None) -> None:
    time.sleep(60 if code is None else 0)
    os._exit(code or 0)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (None, "the engine's process was ended by SIGKILL"),
        (3, "the engine's process ended with status 3"),
        (0, "the engine's process ended"),
    ],
)
def test_the_exit_code_determines_the_message(code: int | None, cause: str) -> None:
    child = FORK.Process(target=_child, args=(code,))
    child.start()
    if code is None:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    asking = [threading.Thread(target=child.join) for _ in range(4)]  # as vLLM's own threads do
    for thread in asking:
        thread.start()
    assert how_ended([child]) == (cause, -signal.SIGKILL if code is None else code)
    for thread in asking:
        thread.join()


class _Late:
    """A process whose pipe is closed but whose exit code is still missing, because the kernel closes files first."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def join(self, timeout: float) -> None:
        """Return at once. Reads of the exit code are counted instead."""

    @property
    def exitcode(self) -> int | None:
        self._looks -= 1
        return None if self._looks > 0 else -signal.SIGTERM


@pytest.mark.parametrize("has_killed", [False, True], ids=["by hand", "by the kernel"])
async def test_a_kill_by_the_kernel_is_reported_as_out_of_memory(
    has_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = FORK.Process(target=_child, args=(None,))
    child.start()
    death: asyncio.Future[EngineFailed] = asyncio.get_running_loop().create_future()
    children = EngineProcesses()
    children.watch([child], death.set_result)
    children.alive()
    monkeypatch.setattr(OomKills, "has_killed", lambda self: has_killed)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    how = await asyncio.wait_for(death, 200)
    assert "SIGKILL" in how.message
    assert ("memory had run out" in how.message) is has_killed
    assert how.code == ("out_of_memory" if has_killed else "engine_failed")


@pytest.mark.parametrize("code", [3, None], ids=["by itself", "by a signal"])
async def test_the_cause_that_the_process_left_is_reported(code: int | None) -> None:
    """But not after a kill, because it may be from an earlier problem."""
    child = FORK.Process(target=_child, args=(code,))
    child.start()
    death: asyncio.Future[EngineFailed] = asyncio.get_running_loop().create_future()
    cause = EngineFailed("RuntimeError: CUDA error: out of memory", code="out_of_memory")
    EngineProcesses().watch([child], death.set_result, lambda: cause)
    if code is None:
        child.kill()
    how = await asyncio.wait_for(death, 200)
    assert (cause.message in how.message, how.code == cause.code) == (bool(code), bool(code))


def test_a_late_exit_code_is_waited_for() -> None:
    late: Any = _Late(8)
    assert how_ended([late]) == ("the engine's process was ended by SIGTERM", -signal.SIGTERM)


def test_only_names_of_this_loads_workers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, shared = tmp_path / "meeting", tmp_path / "shared"
    for folder in (meeting, shared):
        folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(meeting))
    (meeting / "vllm_dist_1").touch()
    earlier = shared_memory.groups()
    for name in ("vllm_dist_2", "other"):
        (meeting / name).touch()
    for name in ("vllm_dist_1", "vllm_dist_2", "vllm_dist_22", "other"):
        for rank in (0, 1):
            (shared / f"{name}-tp:0-[0-1]-cpushm_{rank}").touch()
    shared_memory.remove_names(shared_memory.groups() - earlier, shared)
    left = {path.name.partition("-")[0] for path in shared.iterdir()}
    assert left == {"other", "vllm_dist_1", "vllm_dist_22"}


def test_an_error_for_lack_of_shared_memory_says_what_to_do(tmp_path: Path) -> None:
    """Python's locks for several processes fail there, without the name of a file."""
    missing = tmp_path / "shm"
    nameless, named = FileNotFoundError(2, "No such file or directory"), FileNotFoundError(2, "No such file", "a.json")
    assert "mount a tmpfs there" in shared_memory.missing_hint(nameless, missing)
    assert shared_memory.missing_hint(named, missing) == ""
    assert shared_memory.missing_hint(ValueError("x"), missing) == ""
    assert shared_memory.missing_hint(nameless, tmp_path) == ""
