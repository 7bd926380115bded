"""Threads for calls that wait for another server, such as a hub, or for a database.

asyncio's own threads are few, and every request may need them for files; a slow hub would block them all.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from registry.base.counting import count_down
from registry.errors import QueueFull

P = ParamSpec("P")
T = TypeVar("T")
_Call = tuple[Future[Any], Callable[[], Any]]


class Threads:
    """A pool of at most `count` threads, in which the calls of several owners, such as teams, take turns.

    Each owner may have `count` + `waiting` calls at a time, of which `each` run, so that no owner keeps others out.
    each: default `count`; fewer where another server decides how long a call takes.

    If a caller is cancelled, a waiting call is dropped; a running one goes on and keeps its thread.
    """

    def __init__(self, name: str, count: int = 4, waiting: int = 32, each: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._name, self._most, self._each = name, count + waiting, each or count
        self._free, self._running, self._active = count, Counter[str](), Counter[str]()
        self._waiting: dict[str, deque[_Call]] = {}
        """Calls of each owner, in order; the owner whose turn is next comes first."""
        self._lock = threading.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the server's own `work` in a thread. Raises QueueFull, and what `work` raises."""
        return await self.run_for("", work, *args, **kwargs)

    async def run_for(self, owner: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread at the owner's turn. Raises QueueFull, and what `work` raises."""
        call: tuple[Future[T], Callable[[], T]] = (Future(), partial(work, *args, **kwargs))
        with self._lock:
            if (active := self._active[owner]) >= self._most:
                raise QueueFull(f"{active} calls to the {self._name} are in progress: try again.", retry_after=5)
            self._active[owner] += 1
            self._waiting.setdefault(owner, deque()).append(call)
        call[0].add_done_callback(lambda _: self._ended(owner, call))
        result = asyncio.wrap_future(call[0])  # before it can end, so that `_ended` comes first
        self._begin()
        return await result

    def _begin(self) -> None:
        """Give the free threads to the owners whose turn is next."""
        with self._lock:
            while self._free:
                owner = next((one for one in self._waiting if self._running[one] < self._each), None)
                if owner is None:
                    return
                calls = self._waiting.pop(owner)
                future, work = calls.popleft()
                if calls:
                    self._waiting[owner] = calls
                if future.set_running_or_notify_cancel():
                    self._free -= 1
                    self._running[owner] += 1
                    self._pool.submit(self._run, owner, future, work)

    def _run(self, owner: str, future: Future[T], work: Callable[[], T]) -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            del future, work  # an idle thread keeps nothing
            with self._lock:
                self._free += 1
                count_down(self._running, owner)
            self._begin()

    def _ended(self, owner: str, call: _Call) -> None:
        with self._lock:
            count_down(self._active, owner)
            calls = self._waiting.get(owner, ())
            if calls and call in calls:  # it was cancelled before its turn
                calls.remove(call)
                if not calls:
                    del self._waiting[owner]


async def run_to_end(work: Coroutine[None, None, T]) -> T:
    """Return the result of `work`, and delay a cancellation until it has ended, as its threads go on anyway."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
