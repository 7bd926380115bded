"""The expected wait of requests that arrive during a long change of state."""

import asyncio

import msgspec
import pytest

from models.messages import MemoryFootprint
from runtime.config.device import HostMemory
from runtime.residency.states import ModelState
from tests.fakes.virtual import run
from tests.unit.residency.slow.two import FIRST_SLEEP, WAKE, ask, falls_asleep, reached, world_of_two


def test_a_request_during_a_sleep_expects_the_rest_of_the_sleep_and_the_wake() -> None:
    async def scenario() -> None:
        world = world_of_two()
        entry = await falls_asleep(world)
        assert entry.progress is not None
        assert entry.progress.phase == "falling asleep"
        expected = world.manager.expected_wait(entry)
        assert expected == pytest.approx(FIRST_SLEEP - 1.0 + WAKE)
        plan = world.manager.plan(entry)
        assert (plan.verdict, plan.expected_seconds) == ("wake", pytest.approx(expected))
        assert await ask(world, "a") == pytest.approx(expected)
        assert entry.progress is None
        await world.manager.close()

    run(scenario())


def test_the_expected_wait_includes_the_sleep_of_a_victim() -> None:
    async def scenario() -> None:
        world = world_of_two()
        await ask(world, "a")
        a, b = world.manager.entries["a"], world.manager.entries["b"]
        assert world.manager.expected_wait(b) == pytest.approx(FIRST_SLEEP + 5.0)
        requested = asyncio.create_task(ask(world, "b"))
        await asyncio.sleep(4.0)
        assert b.progress is not None
        assert b.progress.phase == "evicting"
        assert world.manager.expected_wait(b) == pytest.approx(FIRST_SLEEP - 4.0 + 5.0)
        assert await requested == pytest.approx(FIRST_SLEEP + 5.0)

        back = asyncio.create_task(ask(world, "a"))  # its wake waits for the first sleep of b
        await asyncio.sleep(4.0)
        assert (a.state, a.progress and a.progress.phase) == (ModelState.LOADING, "evicting")
        assert world.manager.expected_wait(a) == pytest.approx(FIRST_SLEEP - 4.0 + WAKE), "a wake, not a load"
        await back
        assert world.manager.expected_wait(b) == pytest.approx(WAKE + WAKE), "pinning memory again takes no time"
        await world.manager.close()

    run(scenario())


def test_the_expected_wait_includes_a_sleep_under_way() -> None:
    async def scenario() -> None:
        world = world_of_two()
        await falls_asleep(world)
        b = world.manager.entries["b"]
        expected = FIRST_SLEEP - 1.0 + 5.0
        assert world.manager.expected_wait(b) == pytest.approx(expected)
        assert await ask(world, "b") == pytest.approx(expected)
        await world.manager.close()

    run(scenario())


def test_a_load_with_enough_room_does_not_wait_for_a_sleep() -> None:
    async def scenario() -> None:
        world = world_of_two(budget=60)
        await falls_asleep(world)
        assert world.manager.expected_wait(world.manager.entries["b"]) == 5.0
        assert await ask(world, "b") == 5.0
        assert world.manager.entries["a"].state is ModelState.DRAINING
        await world.manager.close()

    run(scenario())


def test_other_loads_do_not_lengthen_the_measured_sleep() -> None:
    """They hide the freed memory, for which the manager waits ten seconds in vain. The next sleep may be faster."""

    class Hidden(HostMemory):
        async def back(self, held: int, before: int | None) -> None:
            await asyncio.sleep(10.0)

    async def scenario() -> None:
        world = world_of_two()
        world.manager.table.memories = dict.fromkeys(world.manager.table.memories, Hidden())
        entry = await falls_asleep(world)
        entry.measured_first_sleep = None
        await reached(world, entry, ModelState.ASLEEP)
        assert world.clock() - entry.asleep_since < 1.0
        assert entry.measured_first_sleep == FIRST_SLEEP
        await world.manager.close()

    run(scenario())


def test_unmeasured_sleeps_and_wakes_are_estimated_within_a_factor_of_two() -> None:
    """Compared with an H200 (benchmarks/results/gpu/2026-11-27-h200.json)."""

    async def scenario() -> None:
        world = world_of_two()
        await ask(world, "a")
        entry = world.manager.entries["a"]
        assert entry.loaded is not None
        asleep = MemoryFootprint(device_bytes=2_336_227_328, host_bytes=24_319_052_177)
        entry.loaded = msgspec.structs.replace(entry.loaded, asleep=asleep)
        entry.needed, entry.measured_first_sleep, entry.measured_wake = 29_311_893_504, None, None
        assert 16.0 / 2 < entry.sleep_seconds < 16.0 * 2
        assert 0.68 / 2 < entry.wake_seconds < 0.68 * 2
        entry.naps, entry.measured_wake = 1, 0.68
        assert 0.53 / 2 < entry.sleep_seconds < 0.53 * 2, "like a wake, as it is not the first sleep"
        await world.manager.close()

    run(scenario())
