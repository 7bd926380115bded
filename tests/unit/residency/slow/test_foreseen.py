"""What a request is told that comes in the middle of a long change of state."""

import asyncio

import msgspec
import pytest

from models.messages import MemoryFootprint
from runtime.config.device import HostMemory
from runtime.residency.states import ModelState
from tests.fakes.virtual import run
from tests.unit.residency.slow.two import FIRST_SLEEP, WAKE, ask, falls_asleep, reached, world_of_two


def test_a_request_during_a_sleep_expects_the_rest_of_the_sleep_and_the_wake() -> None:
    async def come() -> None:
        world = world_of_two()
        entry = await falls_asleep(world)
        assert entry.progress is not None
        assert entry.progress.phase == "falling asleep"
        foreseen = world.manager.expected_wait(entry)
        assert foreseen == pytest.approx(FIRST_SLEEP - 1.0 + WAKE)
        plan = world.manager.plan(entry)
        assert (plan.verdict, plan.expected_seconds) == ("wake", pytest.approx(foreseen))
        assert await ask(world, "a") == pytest.approx(foreseen)
        assert entry.progress is None
        await world.manager.close()

    run(come())


def test_the_expected_wait_includes_the_sleep_of_a_victim() -> None:
    async def come() -> None:
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

        back = asyncio.create_task(ask(world, "a"))  # its wake waits for b, which falls asleep for the first time
        await asyncio.sleep(4.0)
        assert (a.state, a.progress and a.progress.phase) == (ModelState.LOADING, "evicting")
        assert world.manager.expected_wait(a) == pytest.approx(FIRST_SLEEP - 4.0 + WAKE), "a wake, not a load"
        await back
        assert world.manager.expected_wait(b) == pytest.approx(WAKE + WAKE), "to pin memory again takes no time"
        await world.manager.close()

    run(come())


def test_the_expected_wait_includes_a_sleep_under_way() -> None:
    async def come() -> None:
        world = world_of_two()
        await falls_asleep(world)
        b = world.manager.entries["b"]
        foreseen = FIRST_SLEEP - 1.0 + 5.0
        assert world.manager.expected_wait(b) == pytest.approx(foreseen)
        assert await ask(world, "b") == pytest.approx(foreseen)
        await world.manager.close()

    run(come())


def test_who_has_room_does_not_wait_for_one_that_falls_asleep() -> None:
    async def come() -> None:
        world = world_of_two(budget=60)
        await falls_asleep(world)
        assert world.manager.expected_wait(world.manager.entries["b"]) == 5.0
        assert await ask(world, "b") == 5.0
        assert world.manager.entries["a"].state is ModelState.DRAINING
        await world.manager.close()

    run(come())


def test_what_others_load_meanwhile_does_not_make_a_sleep_longer() -> None:
    """It hides that the memory is back: it is looked for in vain for ten seconds. The next sleep may be alone."""

    class Hidden(HostMemory):
        async def back(self, held: int, before: int | None) -> None:
            await asyncio.sleep(10.0)

    async def hide() -> None:
        world = world_of_two()
        world.manager.table.memories = dict.fromkeys(world.manager.table.memories, Hidden())
        entry = await falls_asleep(world)
        entry.measured_first_sleep = None
        await reached(world, entry, ModelState.ASLEEP)
        assert world.clock() - entry.asleep_since < 1.0
        assert entry.measured_first_sleep == FIRST_SLEEP
        await world.manager.close()

    run(hide())


def test_unmeasured_sleeps_and_wakes_are_foreseen_within_a_factor_of_two() -> None:
    """Compared with an H200 (benchmarks/results/gpu/2026-11-27-h200.json)."""

    async def guess() -> None:
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
        assert 0.53 / 2 < entry.sleep_seconds < 0.53 * 2, "as a wake, since one came before it"
        await world.manager.close()

    run(guess())
