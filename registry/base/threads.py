"""Threads for calls that wait for another server, such as a hub.

asyncio's own threads are few, and every request may need them for files; a slow hub would block them all.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from registry.errors import QueueFull

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of at most `count` threads, for `count` + `waiting` calls at a time.

    If a caller is cancelled, a waiting call is dropped; a running one goes on and keeps its thread.
    """

    def __init__(self, name: str, count: int = 4, waiting: int = 32) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._name, self._most, self._active = name, count + waiting, 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread. Raises QueueFull, and what `work` raises."""
        with self._lock:
            if self._active >= self._most:
                raise QueueFull(f"{self._active} calls to the {self._name} are in progress: try again.", retry_after=5)
            self._active += 1
        future = self._pool.submit(work, *args, **kwargs)
        future.add_done_callback(self._ended)
        return await asyncio.wrap_future(future)

    def _ended(self, _: Future[T]) -> None:
        with self._lock:
            self._active -= 1
