"""The time budget of a run, and how to end work that hangs."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine

from benchmarks.peers import processes


class TimedOut(RuntimeError):
    """Work that did not end in time."""


class Budget:
    """The seconds that a run has left."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._end, self._clock = clock() + seconds, clock

    @property
    def left(self) -> float:
        return self._end - self._clock()

    def until(self, seconds: float) -> Callable[[], bool]:
        """Return a function that says whether `seconds` from now, or the budget, are over."""
        end = min(self._end, self._clock() + seconds)
        return lambda: self._clock() >= end


async def run_within(seconds: float, work: Coroutine[None, None, None], end: Callable[[], None]) -> None:
    """Run the work. After `seconds`, a thread calls `end` every second until the work has ended. Raises TimedOut.

    Work that waits for a server may block the loop, so `end` should kill what the work waits for. No call of `end`
    outlasts this function, or it would kill what the next work starts.
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
        watcher.join()


def kill_children(spared: Collection[int] = ()) -> None:
    """Kill all descendants of this process except the spared ids."""
    for process in processes.family(os.getpid())[1:]:
        if process.pid not in spared:
            processes.kill(process)


def exit_after(seconds: float) -> threading.Timer:
    """End this process and its descendants after `seconds`, unless the returned timer is cancelled."""

    def leave() -> None:
        print("error: the run did not end in time; the results file has what was measured", file=sys.stderr)
        kill_children()
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    return timer
