"""CPU seconds and memory of a server's whole process tree, from the operating system."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

REST_SECONDS, REST_SHARE = 0.4, 0.12
"""Process trees that use less than REST_SHARE of a core for REST_SECONDS are at rest."""


def figures_of(module: str, *words: object) -> dict[str, float]:
    """Run a module in a process of its own, and return the figures that it prints as JSON."""
    command = [sys.executable, "-m", module, *map(str, words)]
    # standard error is not captured, so that the cause of a failure is visible
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """CPU and memory of a process tree.

    Attributes:
        cpu: user and system seconds since the start, including ended children that were waited for.
        rss: bytes; a shared page counts once per process.
        pss: bytes; a shared page counts once. None if unknown.
    """

    cpu: float
    rss: int
    pss: int | None
    processes: int


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants. Empty if it has ended."""
    try:
        main = psutil.Process(pid)
        return [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the tree's user and system seconds so far."""
    total = 0.0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


async def come_to_rest(pids: Sequence[int], within: float = 15.0) -> bool:
    """Wait until these trees are at rest; returns whether they were `within` so many seconds.

    vLLM's worker spins for a second after its last request and would take a core from the next server.
    """
    deadline = time.perf_counter() + within
    while (began := time.perf_counter()) < deadline:
        before = sum(map(cpu_seconds, pids))
        await asyncio.sleep(REST_SECONDS)
        if sum(map(cpu_seconds, pids)) - before < REST_SHARE * (time.perf_counter() - began):
            return True
    return False


def resident(pid: int) -> int:
    """Return the tree's resident bytes. Shared pages count once per process. Fast enough to sample for a peak."""
    total = 0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def memory(pid: int) -> TreeUsage:
    """Return CPU and memory of the tree. Slower than `cpu_seconds`, because it reads the kernel's page tables."""
    rss, pss, count = 0, 0, 0
    known = True
    for process in family(pid):
        try:
            rss += process.memory_info().rss
            pss += process.memory_full_info().pss
            count += 1
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            known = False
    return TreeUsage(cpu_seconds(pid), rss, pss if known else None, count)


def end(pid: int, within: float = 60.0) -> list[int]:
    """Send SIGTERM to a process, then SIGKILL to what is left of its tree after `within` seconds.

    Returns the ids of the descendants that had to be killed.
    """
    tree = family(pid)
    if not tree:
        return []
    with contextlib.suppress(psutil.NoSuchProcess):
        tree[0].terminate()
    psutil.wait_procs(tree[:1], timeout=within)
    _, left = psutil.wait_procs(tree[1:], timeout=2.0)
    for process in (*left, tree[0]):
        kill(process)
    return [process.pid for process in left]


def kill(process: psutil.Process) -> None:
    """Send SIGKILL, unless the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
