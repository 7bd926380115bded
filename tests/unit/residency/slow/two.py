"""Two models whose changes of state take long, on a virtual clock.

The times are those of an 8B model on an H200, rounded: 109 s for a load, 16 s for the first sleep and half a second for
further ones, and half a second for a wake.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from models.messages import MemoryFootprint
from registry.recipes.definition import Residency
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState
from tests.fakes.virtual import VirtualWorld

GIB = 2**30
LOAD, FIRST_SLEEP, WAKE, IDLE, PATIENCE = 109.0, 16.0, 0.5, 10.0, 1.0


def world_of_two(budget: float = 36) -> VirtualWorld:
    """Return a world with a `budget` in GiB, of which 36 are enough for one awake and one sleeping model."""
    world = VirtualWorld(
        bytes={"a": 28 * GIB, "b": 28 * GIB}, seconds={"a": LOAD, "b": 5.0}, budget=int(budget * GIB), slots=3,
        residency={"min_resident": 0}, patience=PATIENCE, wake_seconds=WAKE, first_sleep_seconds=FIRST_SLEEP,
        asleep=dict.fromkeys("ab", MemoryFootprint(device_bytes=2 * GIB, host_bytes=23 * GIB)),
    )  # fmt: skip
    for entry in world.manager.entries.values():
        entry.measured_first_sleep, entry.measured_wake = FIRST_SLEEP, WAKE
    return world


async def ask(world: VirtualWorld, model: str) -> float:
    """Return the seconds that a request waited."""
    began = world.clock()
    async with await world.queues[model].acquire(None):
        return world.clock() - began


async def reached(world: VirtualWorld, entry: ModelEntry, state: ModelState) -> None:
    while entry.state is not state:
        await asyncio.sleep(0.125)
        assert world.clock() < 10_000


@asynccontextmanager
async def watched(world: VirtualWorld) -> AsyncIterator[None]:
    """Let idle time-outs run inside the block."""
    watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=0.125, hung_after=30))
    yield
    watching.cancel()


async def falls_asleep(world: VirtualWorld, **more: float) -> ModelEntry:
    """Return model `a` one second after it began to fall asleep. `more` has further residency settings."""
    entry = world.manager.entries["a"]
    residency = Residency(min_resident=0, idle_timeout=IDLE, **more)
    entry.recipe = entry.recipe.model_copy(update={"residency": residency})
    await ask(world, "a")
    async with watched(world):
        await reached(world, entry, ModelState.DRAINING)
    await asyncio.sleep(entry.asleep_since + 1.0 - world.clock())
    return entry
