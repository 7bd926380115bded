"""The worker that LitServe spawns. It imports nothing of the gateway's.

Its event loop may poll for a moment before it sleeps, while requests run. To wake a process that sleeps takes 50 to
100 µs on an idle core of a virtual machine, and a token passes four such wake-ups. A loop that polls takes a core
instead, so it is for machines that have some to spare.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from litserve.loops import LitLoop

from models.process_control import OomPriority, die_with_parent
from models.protocol import Engine
from registry.base.heap import CollectionLog, freeze_heap
from registry.bounds import USUAL, Bounds
from registry.recipes.definition import Task
from runtime.slots.frames import socket_path
from runtime.slots.loop import SlotServer, log


class SpinningSelector(selectors.EpollSelector):
    """Polls up to `seconds` before it sleeps, while `is_busy`."""

    def __init__(self, seconds: float, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._seconds, self._is_busy = seconds, is_busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (timeout is not None and timeout <= 0) or not self._is_busy():
            return super().select(timeout)
        end = time.monotonic() + (self._seconds if timeout is None else min(self._seconds, timeout))
        while not (events := super().select(0)):
            if time.monotonic() >= end:
                return super().select(None if timeout is None else max(0.0, timeout - self._seconds))
        return events


def event_loop(seconds: float, is_busy: Callable[[], bool]) -> asyncio.AbstractEventLoop:
    """A loop that polls while `is_busy`; asyncio's own if `seconds` is 0."""
    return asyncio.SelectorEventLoop(SpinningSelector(seconds, is_busy) if seconds else None)


MAX_NICENESS = 19
"""The most that Linux knows."""


def create_engine(bounds: Bounds, name: str, task: str) -> Engine:
    from models.engines import create, niceness  # only a slot needs engines: the gateway never imports one

    give_way(niceness(name))
    return create(name, Task(task), bounds)


def give_way(steps: int) -> None:
    """Make this process nicer for good, with its threads and those they start."""
    if steps:
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                now = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, min(MAX_NICENESS, now + steps))


@contextlib.contextmanager
def _load_then_freeze(expendable: OomPriority) -> Iterator[None]:
    """Around the load of this process's one model: what it builds stays until the end."""
    with expendable.loads():
        yield
    freeze_heap()


def own_temporary_folder(run_dir: str, worker_id: int) -> bool:
    """Use a temporary folder that the slot's next process clears.

    The last ones go with the run's folder. Returns whether this is the slot's first process.
    """
    folder = f"{run_dir}/tmp-{worker_id}"
    first = not os.path.exists(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    return first


def own_group() -> None:
    """A slot ends with all of its children by one signal to its group.

    No session of its own: Linux shares CPUs among sessions first (sched(7), autogroup), so that beside a slot that
    imports, the gateway waited up to 0.15 s for a CPU (two cores).
    """
    with contextlib.suppress(PermissionError):  # it leads a session, so a group as well
        os.setpgid(0, 0)


class SlotLoop(LitLoop):  # type: ignore[misc]
    """LitServe's hook for a worker's main loop: serves the slot until it ends."""

    def __init__(
        self, run_dir: str, engines_at_start: tuple[str, ...] = (), bounds: Bounds = USUAL, spin: float = 0.0
    ) -> None:
        """engines_at_start: engines that the first slots of a run import ahead, one each. spin: see `event_loop`."""
        super().__init__()
        self.run_dir, self.engines_at_start, self.bounds, self.spin = run_dir, engines_at_start, bounds, spin

    def __call__(self, lit_api: Any, device: Any, worker_id: int, *_unused: Any) -> None:
        own_group()
        parent = multiprocessing.parent_process()
        assert parent is not None
        die_with_parent(int(parent.pid or 0))
        first = own_temporary_folder(self.run_dir, worker_id)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle; it sends SIGTERM
        expendable = OomPriority()
        expendable.mark_serving()
        warms = self.warms(worker_id) if first else None  # later the gateway decides, since memory may be short
        address = socket_path(self.run_dir, worker_id)
        loads = partial(_load_then_freeze, expendable)
        server = SlotServer(address, partial(create_engine, self.bounds), loads=loads, warms=warms)
        with asyncio.Runner(loop_factory=partial(event_loop, self.spin, server.is_busy)) as runner:
            gc.callbacks.append(CollectionLog(runner.get_loop(), log))
            runner.run(server.serve())
        os._exit(0)  # engine libraries leave threads behind that would keep the interpreter waiting

    def warms(self, worker_id: int) -> str | None:
        """The engine whose libraries a slot's first process imports ahead."""
        return self.engines_at_start[worker_id] if worker_id < len(self.engines_at_start) else None
