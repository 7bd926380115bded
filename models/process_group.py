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
    """Whether any process of the group still runs (a zombie does not)."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return any(_runs(process) for process in members(group))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
