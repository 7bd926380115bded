"""What the operating system says of a server: CPU seconds and memory of its whole process tree."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

REST_SECONDS, REST_SHARE = 0.4, 0.12
"""Trees that use less than so much of a core for so long are at rest."""


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """`cpu`: user and system seconds since the start, ended children that were waited for included. `rss`: bytes, where
    pages that processes share count once for each of them. `pss`: bytes, where they count once; None where unknown."""

    cpu: float
    rss: int
    pss: int | None
    processes: int


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it. Empty when it is gone."""
    try:
        main = psutil.Process(pid)
        return [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """User and system seconds of the tree until now."""
    total = 0.0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


async def come_to_rest(pids: Sequence[int], within: float = 15.0) -> bool:
    """Wait until none of these trees computes: whether they came to rest `within` so many seconds.

    vLLM's worker turns in a loop for a second after its last request, and would take a core from whoever is next.
    """
    deadline = time.perf_counter() + within
    while (began := time.perf_counter()) < deadline:
        before = sum(map(cpu_seconds, pids))
        await asyncio.sleep(REST_SECONDS)
        if sum(map(cpu_seconds, pids)) - before < REST_SHARE * (time.perf_counter() - began):
            return True
    return False


def resident(pid: int) -> int:
    """Bytes that the tree has resident, shared pages once for each process. Quick enough to look for a peak."""
    total = 0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def memory(pid: int) -> TreeUsage:
    """CPU and memory of the tree. Slower than `cpu_seconds`: reads the kernel's page tables."""
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
    """SIGTERM to the first, then SIGKILL to whatever of its tree is left after `within` seconds: their ids."""
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
    """SIGKILL, unless the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
