"""The real residency manager and queues on a virtual clock, without sockets and processes."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from models.messages import LoadResult, MemoryFootprint, Progress
from registry.recipes.definition import Recipe
from runtime.config.budgets import DeviceBudget
from runtime.config.device import HostMemory
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.policy import NO_LIMIT
from runtime.residency.table import Table
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots import frames
from runtime.slots.link import UNKNOWN, SlotLink
from tests.fakes.gateway import NoAdapters, no_fetch, no_revision


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still while anything can run, and jumps to the next timer otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():  # the loop would drop them, and then wait for the next timer
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.now = max(self.now, timers[0].when())
        super()._run_once()  # type: ignore[misc]


async def _no_ping(*_: object) -> None:
    """Replace pings, which virtual links cannot answer."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run the work on a new virtual loop."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


class VirtualCall:
    """A load, which takes the model's seconds."""

    def __init__(self, seconds: float, used_bytes: int, asleep: MemoryFootprint | None) -> None:
        self.seconds, self.bytes, self.asleep = seconds, used_bytes, asleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def done(self, report: Callable[[Progress], None]) -> LoadResult:
        report(Progress(phase="weights", fraction=0.5))
        await asyncio.sleep(self.seconds)
        return LoadResult(
            resident_bytes=self.bytes, weights_bytes=self.bytes, seconds={"weights": self.seconds}, asleep=self.asleep
        )


class VirtualLink:
    """A slot, which takes 0.05 s to end."""

    connected, cause, pid = True, UNKNOWN, 1

    def __init__(self, world: "VirtualWorld") -> None:
        self.world, self.model, self.sleeps, self.slept = world, "", False, False

    def call(self, make: Callable[[int], frames.ToSlot]) -> VirtualCall:
        """Begin a load."""
        frame = make(0)
        assert isinstance(frame, frames.Load)
        assert not self.model, "a slot is for one model"
        self.model = model = Recipe.model_validate_json(frame.recipe).id
        return VirtualCall(self.world.seconds[model], self.world.bytes[model], self.world.asleep.get(model))

    async def command(self, make: Callable[[int], frames.ToSlot], timeout: float) -> MemoryFootprint:
        """Sleep or wake."""
        frame = make(0)
        assert isinstance(frame, frames.Wake if self.sleeps else frames.Sleep)
        assert not self.entry.queue.running
        await asyncio.sleep(self.world.wake_seconds if self.sleeps or self.slept else self.world.first_sleep_seconds)
        self.sleeps = not self.sleeps
        self.slept = True
        host = self.world.asleep[self.model].host_bytes
        return (
            self.world.asleep[self.model]
            if self.sleeps
            else MemoryFootprint(device_bytes=self.world.bytes[self.model], host_bytes=host)
        )

    @property
    def entry(self) -> ModelEntry:
        """The replica that uses this slot."""
        entries: Any = self.world.manager.table.entries.values()
        return next(entry for entry in entries if entry.link is self)

    async def end(self, cause: object = None) -> None:
        await asyncio.sleep(0.05)
        self.world.free += 1

    async def gone(self) -> None:
        """Return at once."""


@dataclass
class VirtualWorld:
    """Models with bytes and load seconds by id, under one budget. It is also the manager's pool of slots.

    There are `parts` devices, each with that budget, and models may be spread over several (`spread`).
    """

    bytes: dict[str, int]
    seconds: dict[str, float]
    budget: int
    slots: int
    residency: dict[str, Any] = field(default_factory=dict)
    patience: float = 1.0
    loads: list[tuple[float, str]] = field(default_factory=list)
    evictions: list[tuple[float, str]] = field(default_factory=list)
    naps: list[tuple[float, str]] = field(default_factory=list)
    wakes: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    asleep: dict[str, MemoryFootprint] = field(default_factory=dict)
    """Memory of models while asleep, for those that can sleep."""
    wake_seconds: float = 0.5
    """Seconds of a wake, and of a sleep."""
    first_sleep_seconds: float = 0.5
    host_budget: int = NO_LIMIT
    replicas: dict[str, dict[str, int]] = field(default_factory=dict)
    """The key `replicas` of recipes that have one."""
    at_once: int = 1000
    parts: int = 1
    spread: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free, self.addable = self.slots, 0  # the number of slots is fixed
        self.queues: dict[str, ModelQueue] = {}
        clock = asyncio.get_running_loop().time
        self.clock, entries, self.bounds = clock, [], WaitingBound(100_000)
        for name, size in self.bytes.items():
            recipe = Recipe.model_validate(
                {
                    "id": name, "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
                    "residency": self.residency, "queue": {"max_waiting": 100_000, "max_wait": "10h"},
                    "batching": {"max_requests": self.at_once, "spare": 0},
                    "replicas": self.replicas.get(name, {}),
                    "parallel": {"tensor": self.spread.get(name, 1)},
                }
            )  # fmt: skip
            of_model: list[ModelEntry] = []
            for number in range(1, recipe.replicas.most + 1):
                entry = ModelEntry(
                    recipe=recipe, path=Path(), revision="r", needed=size, needed_detail="",
                    load_seconds=self.seconds[name], queue=None, number=number, replicas=of_model,  # type: ignore[arg-type]
                    clock=clock,
                )  # fmt: skip
                entry.queue = self.make_queue(recipe, self.queues.get(name), number)
                entries.append(entry)

        budgets = [DeviceBudget(f"cpu:{part}", self.budget) for part in range(self.parts)]
        memories = {budget.device: HostMemory() for budget in budgets}
        table = Table(entries, self, budgets, self, memories, self.host_budget)  # type: ignore[arg-type]
        self.manager = ResidencyManager(table, no_fetch, no_revision, self.patience)
        self.manager.watcher._ping = _no_ping  # type: ignore[method-assign]

    def make_queue(self, recipe: Recipe, first: ModelQueue | None = None, number: int = 1) -> ModelQueue:
        id_ = recipe.id if number == 1 else f"{recipe.id}#{number}"
        self.queues[id_] = queue = ModelQueue(
            recipe,
            self.bounds,
            request_load=lambda: self.manager.request_load(self.manager.table.entries[id_]),
            released=lambda: self.manager.released_by(id_, recipe.id),
            registry=NoAdapters(),
            clock=self.clock,
            first=first,
            number=number,
        )
        return queue

    async def take(self, engine: str, timeout: float = 60.0) -> SlotLink:
        assert self.free > 0, "a load was started without a slot for it"
        self.free -= 1
        return VirtualLink(self)  # type: ignore[return-value]

    async def cool(self, room: int, keep: str | None = None) -> None:
        """Do nothing: there are no pre-warmed slots here."""

    def held(self) -> int:
        return sum(entry.bytes for entry in self.manager.table.entries.values() if entry.link is not None)

    # --- reports of the manager ------------------------------------------------------------------------------------
    def loaded(self, entry: ModelEntry, loaded: LoadResult, seconds: float, expected: float, needed: int) -> None:
        self.loads.append((self.clock(), entry.id))

    def load_failed(self, entry: ModelEntry, error: Exception) -> None:
        self.failures.append(entry.id)

    def retried(self, entry: ModelEntry, reason: str) -> None:
        raise AssertionError("nothing runs out of memory here")

    def grew(self, entry: ModelEntry) -> None:
        raise AssertionError("nothing measures here")

    def evicted(self, entry: ModelEntry, reason: str) -> None:
        self.evictions.append((self.clock(), entry.id))

    def slept(self, entry: ModelEntry, reason: str, seconds: float, freed: int) -> None:
        self.naps.append((self.clock(), entry.id))

    def woke(self, entry: ModelEntry, seconds: float) -> None:
        self.wakes.append((self.clock(), entry.id))

    def sleep_failed(self, entry: ModelEntry, step: str, error: Exception) -> None:
        self.failures.append(entry.id)

    def died(self, entry: ModelEntry, reason: str) -> None:
        self.failures.append(entry.id)
