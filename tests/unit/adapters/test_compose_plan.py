"""The plan of a combination: peft's method and rank, whether there is room for a merge, and how a process ends."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.compose.jobs import (
    Answer,
    ComposeDone,
    ComposeFailed,
    ComposeProgress,
    Method,
    compose,
    encode,
    plan,
)
from adapters.compose.model import Needs, check_room
from registry.base import control_groups
from registry.base.child import Child
from registry.errors import BadRequest, EngineFailed, RoundhouseError, Unavailable, Unfit


@pytest.mark.parametrize(
    ("method", "ranks", "halves", "kind", "rank"),
    [
        ("linear", [8, 8], False, "cat", 16),
        ("linear", [8, 4], False, "cat", 12),
        ("linear", [8, 16], False, "svd", 16),
        ("ties", [8, 4], False, "ties_svd", 12),
        ("ties", [16, 16], False, "ties_svd", 16),
        ("dare", [8, 8], False, "dare_linear_svd", 16),
        ("linear", [16, 16], True, "linear", 16),
        ("ties", [8, 8, 8], True, "ties", 8),
        ("dare", [8, 8], True, "dare_linear", 8),
    ],
)
def test_kind_and_rank(method: Method, ranks: list[int], halves: bool, kind: str, rank: int) -> None:
    assert plan(method, ranks, 16, halves=halves) == (kind, rank)


def test_halves_need_one_rank() -> None:
    with pytest.raises(BadRequest, match="ranks 8, 4") as refused:
        plan("ties", [8, 4], 16, halves=True)
    assert refused.value.param == "halves"


def test_a_containers_limit_counts_as_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When only the machine's memory counted, the kernel killed the process, or the server around it."""
    inner, outer = tmp_path / "outer" / "inner", tmp_path / "outer"
    inner.mkdir(parents=True)
    monkeypatch.setattr(control_groups, "folders", lambda _: [inner, outer])
    expected = Needs(memory=1 << 20, disk=1)
    check_room(expected, tmp_path)
    (outer / "memory.max").write_text(f"{3 << 20}\n")
    (outer / "memory.current").write_text(f"{5 << 19}\n")
    with pytest.raises(Unavailable, match=r"and 512\.0 KiB are free") as error:
        check_room(expected, tmp_path)
    assert error.value.code == "out_of_memory"
    (outer / "memory.stat").write_text(f"anon 7\ninactive_file {1 << 19}\n")  # memory that the kernel can reclaim
    check_room(expected, tmp_path)
    (inner / "memory.limit_in_bytes").write_text(f"{2 << 20}\n")
    (inner / "memory.usage_in_bytes").write_text(f"{3 << 20}\n")
    with pytest.raises(Unavailable, match="and 0 Bytes are free"):
        check_room(expected, tmp_path)


def test_a_merge_that_the_disk_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2 << 20))
    check_room(Needs(memory=1, disk=2 << 20), tmp_path)
    with pytest.raises(Unavailable, match=r"needs about 3\.0 MiB of disk, and 2\.0 MiB are free in") as error:
        check_room(Needs(memory=1, disk=3 << 20), tmp_path)
    assert error.value.code == "disk_full"


class Process:
    """The server's end of a composing process that answers these lines and ends."""

    def __init__(self, lines: list[Answer], is_out_of_memory: bool = False) -> None:
        self._lines, self._is_out_of_memory = lines, is_out_of_memory
        self.job, self.did = b"", list[str]()
        self.stdin: Any = SimpleNamespace(write=self._take, drain=self._drain)
        self.stdout = self._answers()

    def _take(self, job: bytes) -> None:
        self.job += job

    async def _drain(self) -> None:
        self.did.append("drain")

    async def _answers(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield encode(line)

    def kill(self) -> None:
        self.did.append("kill")

    async def wait(self) -> None:
        self.did.append("wait")

    async def ran_out_of_memory(self) -> bool:
        return self._is_out_of_memory


async def composed(monkeypatch: pytest.MonkeyPatch, process: Process) -> list[ComposeProgress]:
    """Run a job in a process, and return its progress."""

    async def start(module: str, env: dict[str, str]) -> Process:
        return process

    monkeypatch.setattr(Child, "python", start)
    progress: list[ComposeProgress] = []
    job: Any = {}
    try:
        await compose(job, tell=progress.append)
    finally:
        assert (process.job, process.did) == (b"{}\n", ["drain", "kill", "wait"])
    return progress


BEGUN = ComposeProgress("combining", 0.2)


async def test_a_process_that_did_its_job_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await composed(monkeypatch, Process([BEGUN, ComposeDone()], is_out_of_memory=True)) == [BEGUN]


@pytest.mark.parametrize(
    ("lines", "is_out_of_memory", "kind", "code", "message"),
    [
        ([], False, EngineFailed, "compose_failed", "was killed. Nothing was changed"),
        ([BEGUN], False, EngineFailed, "compose_failed", "was killed. Nothing was changed"),
        ([BEGUN], True, Unavailable, "out_of_memory", "ran out of memory while it worked on the adapters"),
        ([], True, Unavailable, "out_of_memory", "ran out of memory while it worked on the adapters"),
        ([ComposeFailed("unfit", "no halves")], False, Unfit, "unfit_adapter", "no halves"),
        ([ComposeFailed("disk_full", "no space")], False, Unavailable, "disk_full", "written: no space. Nothing was"),
        ([BEGUN, ComposeFailed("broken", "KeyError")], True, EngineFailed, "compose_failed", "processed: KeyError"),
    ],
)
async def test_a_failure_says_what_the_process_reported_or_how_it_ended(
    monkeypatch: pytest.MonkeyPatch,
    lines: list[Answer],
    is_out_of_memory: bool,
    kind: type[RoundhouseError],
    code: str,
    message: str,
) -> None:
    with pytest.raises(kind, match=message) as failed:
        await composed(monkeypatch, Process(lines, is_out_of_memory))
    assert failed.value.code == code


async def test_waiting_threads_of_the_process_take_no_core_from_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}

    async def refused(module: str, env: dict[str, str]) -> Child:
        environment.update(env)
        raise BlockingIOError

    monkeypatch.setattr(Child, "python", refused)
    job: Any = {}
    with pytest.raises(BlockingIOError):
        await compose(job)
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
