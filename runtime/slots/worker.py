"""The worker that LitServe spawns. It imports nothing from the gateway.

While requests are running, its event loop may poll for a moment before it sleeps. Waking a sleeping process takes 50 to
100 µs on an idle core of a virtual machine, and a token passes four such wake-ups. A polling loop occupies a core, so
it is for machines with cores to spare.
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
from runtime.slots.server import SlotServer, log


class SpinningSelector(selectors.EpollSelector):
    """Polls for up to `seconds` before it sleeps, while `is_busy`."""

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
    """Return an event loop that polls while `is_busy`; asyncio's default if `seconds` is 0."""
    return asyncio.SelectorEventLoop(SpinningSelector(seconds, is_busy) if seconds else None)


MAX_NICENESS = 19
"""The highest niceness in Linux."""


def create_engine(bounds: Bounds, name: str, task: str) -> Engine:
    from models.engines import create, niceness  # only slots need engines; the gateway never imports one

    give_way(niceness(name))
    return create(name, Task(task), bounds)


def give_way(steps: int) -> None:
    """Raise the niceness of this process permanently, for all its current and future threads."""
    if steps:
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
                now = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, min(MAX_NICENESS, now + steps))


@contextlib.contextmanager
def _load_then_freeze(expendable: OomPriority) -> Iterator[None]:
    """Load this process's only model, then freeze the heap, because what a load creates stays until the end."""
    with expendable.loads():
        yield
    freeze_heap()


def own_temporary_folder(run_dir: str, worker_id: int) -> bool:
    """Use a temporary folder of the slot and clear what its previous process left there.

    The last contents are removed with the run folder. Returns whether this is the slot's first process.
    """
    folder = f"{run_dir}/tmp-{worker_id}"
    first = not os.path.exists(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    return first


def own_group() -> None:
    """Make this process the leader of a group, so that one signal ends the slot with all its children.

    It gets no session of its own, because Linux shares CPUs among sessions first (sched(7), autogroup): while a slot
    imported libraries, the gateway waited up to 0.15 s for a CPU (two cores).
    """
    with contextlib.suppress(PermissionError):  # it leads a session and therefore a group
        os.setpgid(0, 0)


class SlotLoop(LitLoop):  # type: ignore[misc]
    """LitServe's hook for a worker's main loop: serves the slot until it ends."""

    def __init__(
        self, run_dir: str, engines_at_start: tuple[str, ...] = (), bounds: Bounds = USUAL, spin: float = 0.0
    ) -> None:
        """engines_at_start: engines that the first slots import in advance, one each. spin: see `event_loop`."""
        super().__init__()
        self.run_dir, self.engines_at_start, self.bounds, self.spin = run_dir, engines_at_start, bounds, spin

    def __call__(self, lit_api: Any, device: Any, worker_id: int, *_unused: Any) -> None:
        own_group()
        parent = multiprocessing.parent_process()
        assert parent is not None
        die_with_parent(int(parent.pid or 0))
        first = own_temporary_folder(self.run_dir, worker_id)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C and sends SIGTERM
        expendable = OomPriority()
        expendable.mark_serving()
        warms = self.warms(worker_id) if first else None  # later the gateway decides, because memory may be short
        address = socket_path(self.run_dir, worker_id)
        loads = partial(_load_then_freeze, expendable)
        server = SlotServer(address, partial(create_engine, self.bounds), loads=loads, warms=warms)
        with asyncio.Runner(loop_factory=partial(event_loop, self.spin, server.is_busy)) as runner:
            gc.callbacks.append(CollectionLog(runner.get_loop(), log))
            runner.run(server.serve())
        os._exit(0)  # engine libraries leave threads behind for which the interpreter would wait

    def warms(self, worker_id: int) -> str | None:
        """Return the engine whose libraries a slot's first process imports in advance."""
        return self.engines_at_start[worker_id] if worker_id < len(self.engines_at_start) else None
