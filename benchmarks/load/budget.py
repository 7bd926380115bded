"""The seconds of a run: how many are left, and an end for work that does not end by itself."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine

from benchmarks.peers import processes


class TimedOut(RuntimeError):
    """Work that did not end in its time."""


class Budget:
    """Seconds that are left of a run."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._end, self._clock = clock() + seconds, clock

    @property
    def left(self) -> float:
        return self._end - self._clock()

    def until(self, seconds: float) -> Callable[[], bool]:
        """Whether `seconds` from now, or the budget, are over."""
        end = min(self._end, self._clock() + seconds)
        return lambda: self._clock() >= end


async def run_within(seconds: float, work: Coroutine[None, None, None], end: Callable[[], None]) -> None:
    """Run the work; when the time is over a thread calls `end`, each second until the work has ended.

    Work that waits for a server may hold the loop, so `end` is to kill what the work waits for. Raises TimedOut.
    """
    has_ended, is_over = threading.Event(), threading.Event()
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def watch() -> None:
        if has_ended.wait(max(0.0, seconds)):
            return
        is_over.set()
        loop.call_soon_threadsafe(task.cancel)
        end()
        while not has_ended.wait(1.0):
            end()

    watcher = threading.Thread(target=watch, name="deadline", daemon=True)
    watcher.start()
    try:
        await task
    except (asyncio.CancelledError, Exception) as error:
        if is_over.is_set():
            raise TimedOut(f"not done after {seconds:.0f} s") from error
        raise
    finally:
        has_ended.set()


def kill_children(spared: Collection[int] = ()) -> None:
    """Kill all processes below this one but for the spared ids."""
    for process in processes.family(os.getpid())[1:]:
        if process.pid not in spared:
            processes.kill(process)


def exit_after(seconds: float) -> threading.Timer:
    """End this process and all below it after so many seconds, whatever its threads wait for. Cancel it to go on."""

    def leave() -> None:
        print("error: the run did not end in its time; its results file has what was measured", file=sys.stderr)
        kill_children()
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    return timer
