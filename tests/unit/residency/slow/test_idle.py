"""When unused models sleep, and when their processes end."""

import asyncio

import pytest

from runtime.residency.states import ModelState
from tests.fakes.virtual import run
from tests.unit.residency.slow.two import (
    FIRST_SLEEP,
    IDLE,
    LOAD,
    WAKE,
    ask,
    falls_asleep,
    reached,
    watched,
    world_of_two,
)

HOUR = 3600.0


def test_an_idle_model_sleeps_until_its_memory_is_needed() -> None:
    """It used to end after another `idle_timeout` asleep, so that the next request waited for a load."""

    async def scenario() -> None:
        world = world_of_two()
        entry = await falls_asleep(world)
        async with watched(world):
            await reached(world, entry, ModelState.ASLEEP)
            await asyncio.sleep(HOUR)
            assert entry.state is ModelState.ASLEEP
            assert await ask(world, "a") == pytest.approx(WAKE)
        assert [model for _, model in world.loads] == ["a"]
        await world.manager.close()

    run(scenario())


def test_a_sleeping_model_ends_after_its_sleep_timeout() -> None:
    async def scenario() -> None:
        world = world_of_two()
        entry = await falls_asleep(world, sleep_timeout=HOUR)
        async with watched(world):
            await reached(world, entry, ModelState.ASLEEP)
            await reached(world, entry, ModelState.ABSENT)
        ((ended, model),) = world.evictions
        assert model == "a"
        assert ended == pytest.approx(LOAD + IDLE + FIRST_SLEEP + HOUR, abs=1.0)
        assert await ask(world, "a") == pytest.approx(LOAD)
        await world.manager.close()

    run(scenario())


def test_a_model_that_sleeps_as_a_victim_ends_after_its_sleep_timeout() -> None:
    async def scenario() -> None:
        world = world_of_two()
        entry = world.manager.entries["a"]
        residency = entry.recipe.residency.model_copy(update={"sleep_timeout": HOUR})
        entry.recipe = entry.recipe.model_copy(update={"residency": residency})
        await ask(world, "a")
        await ask(world, "b")
        assert entry.state is ModelState.ASLEEP
        async with watched(world):
            await reached(world, entry, ModelState.ABSENT)
        assert world.evictions[0][0] == pytest.approx(entry.asleep_since + HOUR, abs=1.0)
        assert world.manager.entries["b"].state is ModelState.READY
        await world.manager.close()

    run(scenario())
