"""Processes as the kernel sees them: parents, groups, memory limit, kills.

psutil knows neither a process's group nor its control groups nor `oom_score_adj`.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from registry.base import control_groups

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends, in any way.

    The kernel counts the end of the thread that started this process. It stays so when another program is executed,
    not in forks.

    Args:
        parent: its process id; if it has ended already, so does this process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def group_members(group: int) -> Iterator[psutil.Process]:
    """Processes of a group, zombies included."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended meanwhile
            if os.getpgid(pid) == group:
                yield psutil.Process(pid)


def is_group_alive(group: int) -> bool:
    """Whether any process of the group has not `ended`."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not all(has_ended(process) for process in group_members(group))


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has given back everything: memory, GPU, ports.

    A zombie has, its parent just has not asked yet; unless only its first thread ended and others are on their way out.
    """
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.num_threads() == 1
    except psutil.NoSuchProcess:
        return True


SERVES, LOADS = 100, 1000
"""Added to a slot's score, in thousandths of the memory, so that the kernel ends it sooner than by size alone.

So it is a load that ends when memory runs out, before models that serve; and never the gateway before a slot.
"""


def memory_folders(pid: int | str = "self") -> list[Path]:
    """The groups of a process that count its memory, innermost first."""
    return control_groups.folders("memory", pid)


def memory_limit() -> int | None:
    """Bytes that this process's groups allow; None: no limit."""
    return min((most for _, most in control_groups.memory_limits(memory_folders())), default=None)


class OomKills:
    """Notices whether the kernel killed a process of the group since `reset`.

    Of this machine, where the process has no group that counts.
    """

    def __init__(self, pid: int | str = "self") -> None:
        self._files = [
            folder / name for folder in memory_folders(pid)[:1] for name in ("memory.events", "memory.oom_control")
        ]
        self._files.append(Path("/proc/vmstat"))
        self.reset()

    def reset(self) -> None:
        self._seen = self._count()

    def has_killed(self) -> bool:
        return self._count() > self._seen

    def _count(self) -> int:
        for file in self._files:
            with contextlib.suppress(OSError):
                for line in file.read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0


class OomPriority:
    """The kernel's order for ending process groups when memory runs out."""

    def __init__(self) -> None:
        self._own = 0
        with contextlib.suppress(OSError):
            self._own = int(Path("/proc/self/oom_score_adj").read_text())

    def mark_serving(self) -> None:
        self._set(SERVES)

    @contextlib.contextmanager
    def loads(self) -> Iterator[None]:
        """Let processes forked inside inherit it; afterwards all are as those that serve."""
        self._set(LOADS)
        try:
            yield
        finally:
            self._set(SERVES)

    def _set(self, more: int) -> None:
        for process in group_members(os.getpgrp()):
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(min(1000, self._own + more)))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error or its cause is out of memory. Does not import torch."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False


def keep_to(gpus: str, cores: Collection[int]) -> None:
    """Have this process, and those it starts, see some GPUs only, and run on some cores only.

    Before the first call to CUDA, which reads the variable once.

    Args:
        gpus: their UUIDs, by commas; empty: as it is.
        cores: numbers of the cores; empty: as it is.
    """
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    if cores:
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(thread, cores)
