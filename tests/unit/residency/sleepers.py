"""Worlds of scripted engines that can sleep, and helpers for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from models.messages import MemoryFootprint
from runtime.residency.states import ModelState
from tests.fakes.engine import FakeEngine
from tests.unit.residency.scripted import World

ASLEEP = MemoryFootprint(device_bytes=5, host_bytes=90)


def can_sleep() -> FakeEngine:
    return FakeEngine(asleep=ASLEEP)


@asynccontextmanager
async def world_of_sleepers(folder: Path) -> AsyncIterator[World]:
    """Yield a world of models of 100 bytes, with room for one on the device and for two sleeping on the host."""
    world = World(folder, "abc", budget=115, host_budget=180)
    world.pool.make = can_sleep
    yield world
    await world.manager.close()
    await world.pool.close()


def used_bytes(world: World, name: str) -> tuple[int, int]:
    entry = world.manager.entries[name]
    return entry.bytes, entry.host_bytes


async def reached(world: World, name: str, state: ModelState) -> None:
    async with asyncio.timeout(200):
        while world.state(name) is not state:
            await asyncio.sleep(0.001)
