"""Processes of one process group. psutil knows everything of a process but its group: that the kernel tells."""

import contextlib
import os
from collections.abc import Iterator

import psutil


def members(group: int) -> Iterator[psutil.Process]:
    """Those that are there now, zombies included."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended meanwhile
            if os.getpgid(pid) == group:
                yield psutil.Process(pid)


def alive(group: int) -> bool:
    """Whether any process of the group has not `ended`."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not all(ended(process) for process in members(group))


def ended(process: psutil.Process) -> bool:
    """Whether a process has let go of everything: memory, the accelerator's too, and ports.

    A zombie has, its parent just has not asked yet; unless only its first thread ended and others are on their way out.
    """
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.num_threads() == 1
    except psutil.NoSuchProcess:
        return True
