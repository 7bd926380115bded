"""Ended processes whose parent ended first. In a container the kernel gives them to its first process, the server.

The engine and helpers of a killed slot are such processes: without a wait for them, each would keep its process id, and
a server that often swaps models would reach the container's limit of processes.
"""

import contextlib
import multiprocessing
import os

import psutil

FIRST = 1
"""Process id of a container's first process."""


class OrphanReaper:
    """Waits for orphans. Leaves children of `multiprocessing` alone, for which others wait."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def reap(self) -> None:
        """Wait for the orphans that had ended at the last call, too. Never blocks. Call it now and then.

        A new child of `multiprocessing` is not in its list at once, so nothing is taken at first sight.
        """
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
        except ChildProcessError:  # there is no child
            return
        others = {child.pid for child in multiprocessing.active_children()}
        ended = {child.pid for child in psutil.Process().children() if _has_ended(child)} - others
        for pid in ended & self._seen:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = ended


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
