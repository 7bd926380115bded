"""A residency manager over scripted engines on real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from models.messages import HttpCall, LoadResult
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe
from runtime.config.budgets import DeviceBudget
from runtime.config.device import HostMemory
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.policy import NO_LIMIT
from runtime.residency.states import ModelState
from runtime.residency.table import Table
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots import frames
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import NoAdapters, no_fetch, no_revision
from tests.fakes.pool import FakePool


class Witness:
    def __init__(self) -> None:
        self.events: list[str] = []

    def loaded(self, entry: ModelEntry, loaded: LoadResult, seconds: float, expected: float, needed: int) -> None:
        self.events.append(f"loaded {entry.id}")

    def load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None:
        self.events.append(f"failed {entry.id}")

    def retried(self, entry: ModelEntry, reason: str) -> None:
        self.events.append(f"retried {entry.id} {reason}")

    def grew(self, entry: ModelEntry) -> None:
        self.events.append(f"grew {entry.id} {entry.bytes}")

    def evicted(self, entry: ModelEntry, reason: str) -> None:
        self.events.append(f"evicted {entry.id}")

    def slept(self, entry: ModelEntry, reason: str, seconds: float, freed: int) -> None:
        self.events.append(f"slept {entry.id}")

    def woke(self, entry: ModelEntry, seconds: float) -> None:
        self.events.append(f"woke {entry.id}")

    def sleep_failed(self, entry: ModelEntry, step: str, error: RoundhouseError) -> None:
        self.events.append(f"{step} failed {entry.id}")

    def died(self, entry: ModelEntry, reason: str) -> None:
        self.events.append(f"died {entry.id} {reason}")


def recipe(name: str, **residency: object) -> Recipe:
    return Recipe.model_validate(
        {
            "id": name, "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
            "residency": {"min_resident": 0, **residency}, "queue": {"max_waiting": 4, "max_wait": 200},
            "batching": {"max_requests": 2},
        }
    )  # fmt: skip


class World:
    """A manager of the models in `names`, of 100 bytes each, with a budget for two."""

    def __init__(
        self, folder: Path, names: str = "abc", budget: int = 250, host_budget: int = NO_LIMIT, parts: int = 1
    ) -> None:
        self.witness = Witness()
        self.pool = FakePool(folder, 3, FakeEngine)
        self.queues: dict[str, ModelQueue] = {}
        bounds = WaitingBound(100)
        entries = []
        for name in names:
            entry = ModelEntry(
                recipe=recipe(name), path=folder, revision="r", needed=100, needed_detail="", load_seconds=0.1,
                queue=None,  # type: ignore[arg-type]
            )  # fmt: skip
            queue = ModelQueue(
                entry.recipe,
                bounds,
                request_load=lambda entry=entry: self.manager.request_load(entry),
                released=lambda name=name: self.manager.released_by(name, name),
                registry=NoAdapters(),
            )
            entry.queue = self.queues[name] = queue
            entries.append(entry)

        budgets = [DeviceBudget(f"cpu:{part}", budget // parts) for part in range(parts)]
        self.memory = HostMemory()
        memories = {budget.device: self.memory for budget in budgets}
        table = Table(entries, self.pool, budgets, self.witness, memories, host_budget)  # type: ignore[arg-type]
        self.manager = ResidencyManager(table, no_fetch, no_revision, 0.05, working_margin=60)
        self.pool.on_death = self.manager.watcher.died

    def state(self, name: str) -> ModelState:
        return self.manager.entries[name].state

    async def ask(self, name: str) -> list[bytes]:
        """Make a request and return its events."""
        async with await self.queues[name].acquire(None) as lease:
            call = HttpCall(path="/", body=b"", served=name, display_name=name)
            async with lease.link.call(lambda uid: frames.Call.of(uid, call)) as answer:
                data = b"".join([e.data async for e in answer.events() if hasattr(e, "data")])
        return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]


@asynccontextmanager
async def in_use(world: World, name: str) -> AsyncIterator[None]:
    """Keep a request running on the model inside the block."""
    async with await world.queues[name].acquire(None):
        yield
