"""Models that nobody uses: when they sleep, and when their process ends."""

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


def test_an_idle_model_sleeps_on_while_its_room_is_not_needed() -> None:
    """It ended when it had slept for as long again: 10 s of idleness, and the next request waited for a load."""

    async def rest() -> None:
        world = world_of_two()
        entry = await falls_asleep(world)
        async with watched(world):
            await reached(world, entry, ModelState.ASLEEP)
            await asyncio.sleep(HOUR)
            assert entry.state is ModelState.ASLEEP
            assert await ask(world, "a") == pytest.approx(WAKE)
        assert [model for _, model in world.loads] == ["a"]
        await world.manager.close()

    run(rest())


def test_one_with_a_time_out_for_its_sleep_ends_after_it() -> None:
    async def rest() -> None:
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

    run(rest())


def test_one_that_slept_as_a_victim_ends_after_it_too() -> None:
    async def rest() -> None:
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

    run(rest())
