"""Start EngineCore as a fork of this process: its imports are there already, in time and in memory.

Forking a process with threads is safe here because
- the fork is made from a new thread: OpenMP keeps its pool per thread, so the child starts without a dead pool;
- the child closes every socket of its parent at once: a peer of the slot sees it die, whatever the child does;
- the thread stays when the engine has started: EngineCore would end with it (`models.parent`);
- asyncio's wake-up descriptor is taken out of the child: a signal there must not wake the parent's loop.
"""

import asyncio
import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_forking = threading.local()


def _clean_child() -> None:
    if not getattr(_forking, "engine", False):
        return
    _forking.engine = False  # what EngineCore forks itself keeps its sockets
    signal.set_wakeup_fd(-1)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)
        except OSError:
            continue  # the descriptor of the listing itself


os.register_at_fork(after_in_child=_clean_child)


def forked() -> bool:
    """Whether EngineCore runs. vLLM may have other processes before that, such as one that looks at a model's class."""
    return any(process.name.startswith("EngineCore") for process in multiprocessing.active_children())


async def child_or_end(starting: "asyncio.Task[None]") -> None:
    """Until EngineCore runs, which reads the weights, or the start has ended. Cancelled, it waits for the start."""
    try:
        while not starting.done() and not forked():
            await asyncio.wait({starting}, timeout=0.05)
    except asyncio.CancelledError:
        starting.cancel()  # `in_new_thread` ends when the thread has: what it started is not lost
        await asyncio.wait({starting})
        raise


async def in_new_thread(work: Callable[[], T]) -> T:
    """Run `work`, which may fork an engine, in a thread that nothing else ever ran in.

    A cancelled caller waits for `work` to end: what it started must not be lost.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        _forking.engine = True
        try:
            value = work()
        except BaseException as error:  # handed to the caller, KeyboardInterrupt included
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, value, None)
            threading.Event().wait()

    threading.Thread(target=run, name="engine-start", daemon=True).start()
    cancelled = False
    while not result.done():
        try:
            await asyncio.shield(result)
        except asyncio.CancelledError:
            if result.done():
                break
            cancelled = True
        except BaseException:
            break
    if cancelled:
        result.exception()
        raise asyncio.CancelledError
    return result.result()
