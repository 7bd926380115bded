"""Process parents, groups, memory limits and out-of-memory kills.

psutil supports neither process groups nor control groups nor `oom_score_adj`.
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

    What counts is the end of the thread that started this process. The setting survives exec, but is not inherited by
    forks.

    Args:
        parent: its process id. If it has already ended, this process is signalled at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def group_members(group: int) -> Iterator[psutil.Process]:
    """Yield the processes of a group, including zombies."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended meanwhile
            if os.getpgid(pid) == group:
                yield psutil.Process(pid)


def is_group_alive(group: int) -> bool:
    """Return whether any process of the group has not ended (`has_ended`)."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not all(has_ended(process) for process in group_members(group))


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has released all memory, GPUs and ports.

    A zombie has, unless only its first thread has ended and others are still ending.
    """
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.num_threads() == 1
    except psutil.NoSuchProcess:
        return True


SERVES, LOADS = 100, 1000
"""Added to a slot's OOM score, in thousandths of the memory.

So if memory runs out, the kernel kills loading slots before serving ones, and slots before the gateway.
"""


def memory_limit() -> int | None:
    """Return the bytes that this process's groups allow, or None without a limit."""
    return min((most for _, most in control_groups.memory_limits(control_groups.folders("memory"))), default=None)


class OomPriority:
    """Sets how likely the kernel is to kill this process group if memory runs out."""

    def __init__(self) -> None:
        self._own = 0
        with contextlib.suppress(OSError):
            self._own = int(Path("/proc/self/oom_score_adj").read_text())

    def mark_serving(self) -> None:
        self._set(SERVES)

    @contextlib.contextmanager
    def loads(self) -> Iterator[None]:
        """Mark processes in the block, including new ones, as loading, and afterwards as serving."""
        self._set(LOADS)
        try:
            yield
        finally:
            self._set(SERVES)

    def _set(self, more: int) -> None:
        for process in group_members(os.getpgrp()):
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                Path(f"/proc/{process.pid}/oom_score_adj").write_text(str(min(1000, self._own + more)))


FULL = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""Words of RuntimeErrors for lack of memory without a type of their own: CUDA's and cuBLAS's, in torch and CTranslate2,
and torch's on a CPU."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error or its cause is out of memory, by type or by `FULL`. Does not import torch."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    while error is not None:
        if isinstance(error, kinds) or (isinstance(error, RuntimeError) and any(word in str(error) for word in FULL)):
            return True
        error = error.__cause__
    return False


def keep_to(gpus: str, cores: Collection[int]) -> None:
    """Restrict this process and its children to some GPUs and cores.

    Call it before CUDA is first used, which reads the variable once.

    Args:
        gpus: UUIDs separated by commas; empty for no change.
        cores: numbers of cores; empty for no change.
    """
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    if cores:
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(thread, cores)
