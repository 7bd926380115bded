"""The shutdown of a server, with its phases in the log, and a watchdog for stopped processes."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, NamedTuple, cast

import psutil


class ProcessWatchdog:
    """Detects processes that have been stopped (SIGSTOP) for too long."""

    def __init__(self, pids: Sequence[int], seconds: float) -> None:
        self._pids, self._seconds = pids, seconds
        self._since: dict[int, float] = {}

    def is_stopped_too_long(self, now: float) -> bool:
        """Check once. now: monotonic seconds."""
        stopped = {pid for pid in self._pids if _is_stopped(pid)}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return any(now - since >= self._seconds for since in self._since.values())


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


log = logging.getLogger("roundhouse.server")


class RemainingWork(NamedTuple):
    """Running and waiting requests, and models in memory, at one moment."""

    running: int
    waiting: int
    models: int


class Shutdown:
    """The shutdown of the API process.

    Args:
        remaining: returns the remaining work.
        seconds: how long running responses may take at most.
        closing: called at the beginning, to end streams that would never end by themselves.
    """

    def __init__(
        self, remaining: Callable[[], RemainingWork], seconds: float, closing: Callable[[], None] = lambda: None
    ) -> None:
        self._remaining, self._seconds, self._closing = remaining, seconds, closing
        self._began: float | None = None
        self._first = RemainingWork(0, 0, 0)
        self._is_drained = False

    def listen(self) -> None:
        """Begin on a signal, before uvicorn's handlers close the port. Must run in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before(number, signal.getsignal(number))

    def _before(self, number: int, handler: object) -> None:
        if not callable(handler):  # no server listens for it
            return

        def on_signal(got: int, frame: FrameType | None) -> None:
            self.begin()
            handler(got, frame)

        signal.signal(number, on_signal)

    def begin(self) -> None:
        """Begin the shutdown, as the port closes. Only the first call has an effect."""
        if self._began is not None:
            return
        self._began, self._first = time.monotonic(), self._remaining()
        self._closing()
        self._log("stopping: the port is closed, requests may finish", self._first, at_most_s=self._seconds)

    def seconds_left(self) -> float:
        """Return the seconds for which work may still run; the full time before the beginning."""
        began = self._began
        return self._seconds if began is None else max(0.0, self._seconds - (time.monotonic() - began))

    def drained(self) -> None:
        """Log that no request is left, or how many are cut off. Only the first call has an effect."""
        if self._is_drained:
            return
        self._is_drained = True
        remaining = self._remaining()
        done = max(0, self._first.running + self._first.waiting - remaining.running - remaining.waiting)
        text = "requests were cut off" if remaining.running + remaining.waiting else "no request is left"
        self._log(f"stopping: {text}", remaining, finished=done)

    def ending(self) -> None:
        """Log that everything but the slots is closed."""
        self._log("stopping: the engines end", self._remaining())

    def _log(self, text: str, remaining: RemainingWork, **more: float) -> None:
        since = 0.0 if self._began is None else time.monotonic() - self._began
        log.info(text, extra={**remaining._asdict(), **more, "seconds": round(since, 2)})


def log_stopped() -> None:
    """Log the last line. Stops Python's resource tracker first, if no other process is left."""
    tracker = cast(Any, resource_tracker._resource_tracker)  # _stop is private; Python calls it at exit
    if {child.pid for child in _children()} == {tracker._pid}:  # another process would keep its pipe open
        tracker._stop()
    log.info("stopped", extra={"processes_left": len(_children())})


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
