"""Processes that a signal has stopped: they hold everything and do nothing, and nothing that ends them is noticed."""

from collections.abc import Sequence

import psutil


class ProcessWatchdog:
    """Whether one of some processes has been stopped (SIGSTOP) for too long. A busy one never counts."""

    def __init__(self, pids: Sequence[int], seconds: float) -> None:
        self._pids, self._seconds = pids, seconds
        self._since: dict[int, float] = {}

    def is_stopped_too_long(self, now: float) -> bool:
        """Looks once. now: on a clock that only rises."""
        stopped = {pid for pid in self._pids if _is_stopped(pid)}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return any(now - since >= self._seconds for since in self._since.values())


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
