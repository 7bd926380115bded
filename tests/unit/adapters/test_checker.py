"""Checking processes that are killed, hang, or run out of resources are replaced."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from adapters.checker import Checker
from adapters.jobs import Job
from adapters.types import Base
from registry.bounds import Bounds
from registry.errors import EngineFailed, Unavailable, Unfit
from tests.unit.adapters.makers import write_adapter

BOMB = "(((a|.)*)*)*!"
"""A pattern whose time doubles with each character of the text."""


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker(workers=1)
    await checker.start()
    yield checker
    await checker.close()


async def test_it_judges_good_and_bad_in_another_process(checker: Checker, base: Base, folder: Path) -> None:
    (pid,) = checker.pids
    assert pid != os.getpid()
    write_adapter(folder / "good")
    write_adapter(folder / "bad", settings={"use_dora": True})
    checked = await checker.check(Job(folder / "good", base, Bounds()))
    assert checked.rank == 8
    with pytest.raises(Unfit) as refused:
        await checker.check(Job(folder / "bad", base, Bounds()))
    assert "DoRA" in refused.value.faults[0]
    assert refused.value.code == "unfit_adapter"
    assert checker.pids == [pid]


async def test_a_killed_checker_is_an_error_for_one_and_replaced(checker: Checker, base: Base, folder: Path) -> None:
    write_adapter(folder)
    (pid,) = checker.pids
    os.kill(pid, signal.SIGSTOP)
    running = asyncio.create_task(checker.check(Job(folder, base, Bounds())))
    await asyncio.sleep(0)  # until the job is sent
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineFailed, match="was killed") as failed:
        await running
    assert failed.value.code == "check_failed"
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8
    assert checker.pids != [pid]


async def test_a_checker_killed_while_idle_is_replaced(checker: Checker, base: Base, folder: Path) -> None:
    write_adapter(folder)
    (pid,) = checker.pids
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(EngineFailed):  # its end may be noticed only at the next job
        await checker.check(Job(folder, base, Bounds()))
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8


async def test_a_checker_that_hangs_is_ended(
    checker: Checker, base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.checker._GRACE", 0.2)
    write_adapter(folder)
    (pid,) = checker.pids
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EngineFailed, match="took more than"):
        await checker.check(Job(folder, base, Bounds(adapter_check_seconds=0.2)))
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8


async def test_one_that_does_not_start_in_time_is_an_error_and_replaced(
    base: Base, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_adapter(folder)
    checker = Checker(workers=1)
    with monkeypatch.context() as hurried:
        hurried.setattr("adapters.checker._START", 0.0)
        with pytest.raises(EngineFailed, match="did not start within") as failed:
            await checker.check(Job(folder, base, Bounds()))
    assert failed.value.code == "check_failed"
    assert checker.pids == []
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8
    await checker.close()


async def test_a_caller_that_leaves_frees_its_worker(checker: Checker, base: Base, folder: Path) -> None:
    write_adapter(folder)
    os.kill(checker.pids[0], signal.SIGSTOP)
    running = asyncio.create_task(checker.check(Job(folder, base, Bounds())))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"])
async def test_a_hostile_pattern_is_cut_short(checker: Checker, base: Base, folder: Path, key: str) -> None:
    (pid,) = checker.pids
    write_adapter(folder, settings={key: {BOMB: 8} if key.endswith("pattern") else BOMB})
    with pytest.raises(Unfit) as refused:
        await checker.check(Job(folder, base, Bounds(pattern_seconds=0.2)))
    assert "more than 0.2 s of CPU time to match" in refused.value.faults[0]
    write_adapter(folder)
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8
    assert checker.pids == [pid], "the check ends, but not the process"


async def test_thousands_of_patterns_are_cut_short_as_one_is(checker: Checker, base: Base, folder: Path) -> None:
    write_adapter(folder, settings={"rank_pattern": {f"layers.{number}.*x": 8 for number in range(19_000)}})
    with pytest.raises(Unfit) as refused:
        await checker.check(Job(folder, base, Bounds(pattern_seconds=0.2)))
    assert "CPU time" in refused.value.faults[0]


async def test_two_hostile_patterns_keep_no_one_waiting_for_long(base: Base, folder: Path) -> None:
    """As many as there are processes. The bound is on processor time, a few seconds by default."""
    checker = Checker(workers=2)
    await checker.start()
    write_adapter(folder / "bad", settings={"rank_pattern": {BOMB: 8}})
    write_adapter(folder / "good")
    bombs = [
        asyncio.create_task(checker.check(Job(folder / "bad", base, Bounds(pattern_seconds=0.2)))) for _ in range(2)
    ]
    await asyncio.sleep(0)
    assert (await checker.check(Job(folder / "good", base, Bounds()))).rank == 8
    assert all(isinstance(refused, Unfit) for refused in await asyncio.gather(*bombs, return_exceptions=True))
    await checker.close()
    assert Bounds().pattern_seconds <= 5


async def test_too_much_memory_is_refused(checker: Checker, base: Base, folder: Path) -> None:
    """A tensor of 600 MB, as a hole in the file, in a process that may use 400 MB."""
    write_adapter(folder, settings={"target_modules": ["q_proj"]})
    header = (
        b'{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight":'
        b'{"dtype":"F32","shape":[150000000,1],"data_offsets":[0,600000000]}}'
    )
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(folder / "adapter_model.safetensors", 8 + len(header) + 600_000_000)
    with pytest.raises(Unfit) as refused:
        await checker.check(Job(folder, base, Bounds(adapter_check_memory=400 << 20)))
    assert "memory" in refused.value.faults[0]
    write_adapter(folder)
    assert (await checker.check(Job(folder, base, Bounds()))).rank == 8


async def test_a_full_disk_is_reported(checker: Checker, base: Base, folder: Path, tmp_path: Path) -> None:
    write_adapter(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(Unavailable, match="full") as refused:
        await checker.check(Job(folder, base, Bounds(unpacked_bytes=10_000), out=tmp_path / "out"))
    assert refused.value.code == "disk_full"


async def test_processor_seconds_of_many_jobs_do_not_end_a_checker(checker: Checker, base: Base, folder: Path) -> None:
    write_adapter(folder)
    for _ in range(3):
        await checker.check(Job(folder, base, Bounds(adapter_check_seconds=200)))
    soft, _ = resource.prlimit(checker.pids[0], resource.RLIMIT_CPU)
    assert 200 <= soft < 400, "200 more than it has used"


def test_a_checker_closes_files_that_its_parent_left_open() -> None:
    """An event loop may start children with all of the server's descriptors, its port included."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.set_inheritable(True)
        command = [sys.executable, "-m", "adapters.check_process"]
        with subprocess.Popen(command, stdin=-1, stdout=-1, close_fds=False, cwd=Path(__file__).parents[3]) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert psutil.Process(process.pid).net_connections() == []
            process.kill()


async def test_close_ends_the_processes(base: Base, folder: Path) -> None:
    checker = Checker(workers=2)
    await checker.start()
    pids = checker.pids
    assert len(pids) == 2
    await checker.close()
    await checker.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(EngineFailed, match="stopping"):
        await checker.check(Job(folder, base, Bounds()))
