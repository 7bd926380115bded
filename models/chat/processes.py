"""EngineCore's processes: forked from this one, measured, and watched for their end.

Forking a process with threads is safe here because
- the fork happens in a new thread: OpenMP has a pool per thread, so the child starts without a dead pool;
- the child closes all sockets of its parent at once, so that the slot's peers notice its death whatever the child does;
- the thread stays alive after the engine has started, because EngineCore would end with it (`models.process_control`);
- asyncio's wake-up descriptor is removed in the child, so that a signal there does not wake the parent's loop.
"""

import asyncio
import multiprocessing
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import TypeVar

import psutil

from registry.base.control_groups import OomKills
from registry.errors import EngineFailed

T = TypeVar("T")

_forking = threading.local()


def _clean_child() -> None:
    if not getattr(_forking, "engine", False):
        return
    _forking.engine = False  # EngineCore's own forks keep its sockets
    signal.set_wakeup_fd(-1)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)
        except OSError:
            continue  # the descriptor of the listing itself


os.register_at_fork(after_in_child=_clean_child)


def is_forked() -> bool:
    """Return whether EngineCore is running. vLLM may start other processes before it, such as to inspect a class."""
    return any(process.name.startswith("EngineCore") for process in multiprocessing.active_children())


async def child_or_end(starting: "asyncio.Task[None]") -> None:
    """Wait until EngineCore is running, which then reads the weights, or until the start has ended.

    If cancelled, waits for the end of the start.
    """
    try:
        while not starting.done() and not is_forked():
            await asyncio.wait({starting}, timeout=0.05)
    except asyncio.CancelledError:
        starting.cancel()  # `in_new_thread` ends only with the thread, so nothing it started is lost
        await asyncio.wait({starting})
        raise


async def in_new_thread(work: Callable[[], T]) -> T:
    """Run `work`, which may fork an engine, in a new thread.

    A cancelled caller waits for `work` to end, so that nothing it started is lost.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        _forking.engine = True
        try:
            value = work()
        except BaseException as error:  # passed on to the caller, including KeyboardInterrupt
            loop.call_soon_threadsafe(result.set_exception, error)
        else:
            loop.call_soon_threadsafe(result.set_result, value)
            threading.Event().wait()

    threading.Thread(target=run, name="engine-start", daemon=True).start()
    cancelled = False
    while not result.done():
        try:
            await asyncio.wait({result})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        result.exception()
        raise asyncio.CancelledError
    return result.result()


def memory_of(processes: Sequence[BaseProcess]) -> int:
    """Return the bytes of this process, EngineCore and its workers.

    A fork shares most pages with its parent; the proportional set size counts each page once.
    """
    own = [psutil.Process(process.pid) for process in processes]
    family = [psutil.Process(), *own, *(worker for process in own for worker in process.children(recursive=True))]
    return sum(process.memory_full_info().pss for process in family)


class EngineProcesses:
    """Watches EngineCore's processes. vLLM drops its references when one dies, perhaps before this notices."""

    def __init__(self) -> None:
        self._processes: Sequence[BaseProcess] = []
        self._sentinels: list[int] = []
        self._read_cause: Callable[[], EngineFailed | None] = lambda: None
        self._kills = OomKills()

    def watch(
        self,
        processes: Sequence[BaseProcess],
        on_death: Callable[[EngineFailed], None],
        read_cause: Callable[[], EngineFailed | None] = lambda: None,
    ) -> None:
        """Watch on the running event loop.

        Args:
            on_death: called with the error of the first process that ends.
            read_cause: reads the cause that a process has recorded before its end.
        """

        def died() -> None:
            self.unwatch()
            on_death(self.how_ended())

        self._processes, self._read_cause = processes, read_cause
        for process in processes:
            self._sentinels.append(process.sentinel)
            asyncio.get_running_loop().add_reader(process.sentinel, died)

    def unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        for sentinel in self._sentinels:
            loop.remove_reader(sentinel)
        self._sentinels.clear()

    def alive(self) -> None:
        """Note that the processes have answered, so that earlier out-of-memory kills did not hit them."""
        self._kills.reset()

    def how_ended(self) -> EngineFailed:
        """Return the error for the process that has ended."""
        words, code = how_ended(self._processes)
        if code == -signal.SIGKILL and self._kills.has_killed():
            return EngineFailed(f"{words}, by the kernel, because memory had run out", code="out_of_memory")
        if code >= 0 and (cause := self._read_cause()):
            return EngineFailed(f"{words}: {cause.message}", code=cause.code)
        return EngineFailed(words)


def how_ended(processes: Sequence[BaseProcess]) -> tuple[str, int]:
    """Describe the end of EngineCore's processes, with the exit code (0 if unknown).

    Waits up to a second for a process that is just ending.
    """
    deadline = time.monotonic() + 1
    while True:
        for process in processes:
            process.join(0.05)  # vLLM's threads may join at the same time, and the second one sees no code yet
        codes = [process.exitcode for process in processes]
        for code in codes:
            if code is not None and code < 0:
                return f"the engine's process was ended by {signal.Signals(-code).name}", code
            if code:
                return f"the engine's process ended with status {code}", code
        if None not in codes or time.monotonic() > deadline:
            return "the engine's process ended", 0
