"""State shared by the parts of residency: models, tasks, events."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from models.messages import LoadResult
from registry.errors import EngineFailed, NotFound, RoundhouseError
from runtime.config.budgets import DeviceBudget, Group
from runtime.config.device import DeviceMemory, GroupMemory
from runtime.residency.entry import ModelEntry
from runtime.residency.policy import NO_LIMIT, Snapshot
from runtime.residency.states import HOLDS_MEMORY, ModelState
from runtime.slots.pool import SlotPool

log = logging.getLogger("roundhouse.residency")
S = ModelState
Step = Literal["sleep", "wake"]


def map_error(error: Exception, what: str) -> RoundhouseError:
    """Map an internal error to a RoundhouseError."""
    if isinstance(error, RoundhouseError):
        return error
    log.error("unmapped error in a %s", what, exc_info=error)
    return EngineFailed(f"The {what} failed inside the server: {type(error).__name__}.")


class Observer(Protocol):
    """Receives residency events, for metrics and measurements. Must not block."""

    def loaded(self, entry: ModelEntry, loaded: LoadResult, seconds: float, expected: float, needed: int) -> None: ...
    def load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None: ...
    def retried(self, entry: ModelEntry, reason: str) -> None: ...
    def grew(self, entry: ModelEntry) -> None: ...
    def evicted(self, entry: ModelEntry, reason: str) -> None: ...
    def slept(self, entry: ModelEntry, reason: str, seconds: float, freed: int) -> None: ...
    def woke(self, entry: ModelEntry, seconds: float) -> None: ...
    def sleep_failed(self, entry: ModelEntry, step: Step, error: RoundhouseError) -> None: ...
    def died(self, entry: ModelEntry, reason: str) -> None: ...


class Table:
    """The table of models. Used on the gateway's event loop only.

    Args:
        entries: the models.
        pool: the slots.
        budgets: bytes for all models together, for each device.
        observer: called for each event.
        memories: device to its memory, which reports when a model's bytes are free again.
        host_budget: bytes for all models together in host memory, in addition to the devices.
        counts_processes: whether a model's bytes are those of its processes, as on a CPU.
    """

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        pool: SlotPool,
        budgets: Sequence[DeviceBudget],
        observer: Observer,
        memories: Mapping[str, DeviceMemory],
        host_budget: int = NO_LIMIT,
        counts_processes: bool = False,
    ) -> None:
        self.entries = {entry.id: entry for entry in entries}
        """All replicas of all models."""
        self.models = {entry.id: entry for entry in self.entries.values() if entry.number == 1}
        """The first replica of each model."""
        self.pool, self.budgets, self.host_budget = pool, tuple(budgets), host_budget
        self.observer, self.memories, self.counts_processes = observer, memories, counts_processes
        self.claims: set[str] = set()
        """Models whose load is decided but which have not taken their slot yet."""
        self.lost: dict[str, str] = {}
        """Devices that are gone, with the cause. Nothing is loaded there."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    # --- models ---------------------------------------------------------------------------------------------------
    def get(self, model: str) -> ModelEntry:
        entry = self.models.get(model)
        if entry is None:
            raise NotFound(f"There is no model '{model}'. There are: {', '.join(sorted(self.models))}.")
        return entry

    def add(self, entry: ModelEntry) -> None:
        self.entries[entry.id] = entry
        if entry.number == 1:
            self.models[entry.id] = entry

    def remove(self, entry: ModelEntry) -> None:
        self.entries.pop(entry.id, None)
        if entry.number == 1:
            self.models.pop(entry.id, None)

    def group_of(self, entry: ModelEntry) -> Group:
        """Return the budgets of a model's devices."""
        return tuple(budget for budget in self.budgets if budget.device in entry.devices)

    def memory_of(self, entry: ModelEntry) -> DeviceMemory:
        memories = [self.memories[device] for device in entry.devices]
        return memories[0] if len(memories) == 1 else GroupMemory(memories)

    @property
    def budget(self) -> int:
        """Bytes of all devices together."""
        return sum(budget.bytes for budget in self.budgets)

    def used_bytes(self, besides: ModelEntry | None = None, device: str | None = None) -> int:
        """Return the bytes that models hold now on one device or on all."""
        holders = self._holders(besides)
        if device is None:
            return sum(e.bytes for e in holders)
        return sum(e.held_on_each(e.bytes) for e in holders if device in e.devices)

    def used_host_bytes(self, besides: ModelEntry | None = None) -> int:
        """Return the bytes that models hold in host memory in addition to the devices."""
        return sum(e.host_bytes for e in self._holders(besides))

    def _holders(self, besides: ModelEntry | None) -> Iterator[ModelEntry]:
        for e in self.entries.values():
            if e is not besides and e.state in HOLDS_MEMORY and not (e.state is S.LOADING and e.link is None):
                yield e

    def snapshot(self) -> Snapshot:
        """Return the policy's input."""
        residents = tuple(r for entry in self.entries.values() if (r := entry.resident()) is not None)
        present = tuple(budget for budget in self.budgets if budget.device not in self.lost)
        slots_free = self.pool.free - len(self.claims)
        addable = self.pool.addable if slots_free < 1 else 0
        return Snapshot(present, residents, slots_free, self.clock(), self.host_budget, addable)

    def clock(self) -> float:
        """Return the time by the models' clock."""
        return next(iter(self.entries.values())).clock() if self.entries else time.monotonic()

    # --- events ---------------------------------------------------------------------------------------------------
    def note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def call_later(self, seconds: float) -> None:
        """Wake the waiters of `change` after this many seconds."""
        asyncio.get_running_loop().call_later(seconds, self.note_change)

    async def change(self) -> None:
        """Wait for the next change of any state, progress or lease."""
        await self._changed.wait()

    # --- tasks ----------------------------------------------------------------------------------------------------
    def spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def running(self, name: str) -> int:
        """Return the number of running tasks with this name."""
        return sum(task.get_name() == name for task in self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
