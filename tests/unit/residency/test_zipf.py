"""With a budget for two of five models and traffic on all five, waits and loads stay within bounds.

The bounds are those of docs/residency.md with the figures of this test.
"""

import asyncio
import os
import random

import pytest

from models.messages import MemoryFootprint
from tests.fakes.virtual import VirtualLoop, VirtualWorld

pytestmark = pytest.mark.long

REQUESTS = int(os.environ.get("SIMULATED_REQUESTS", "1200"))
PATIENCE, LONGEST_ANSWER, END = 1.0, 3.0, 0.05
LOADS = {"a": 6.0, "b": 1.0, "c": 2.0, "d": 0.5, "e": 4.0}
FIT = 2


async def traffic(
    seed: int, min_resident: float, rate: float, skew: float, host_budget: int = 0, slots: int = 3
) -> tuple[VirtualWorld, list[float]]:
    """Return the world and the waits in seconds of REQUESTS requests, Poisson in time, with Zipf's law over models."""
    rng = random.Random(seed)
    world = VirtualWorld(
        bytes=dict.fromkeys(LOADS, 100), seconds=LOADS, budget=100 * FIT + 50, slots=slots,
        residency={"min_resident": min_resident, "drain_deadline": 60}, patience=PATIENCE,
    )  # fmt: skip
    if host_budget:  # the models can sleep
        world.asleep = dict.fromkeys(LOADS, MemoryFootprint(device_bytes=10, host_bytes=100))
        world.manager.table.host_budget = host_budget
    weights = [1 / (place + 1) ** skew for place in range(len(LOADS))]
    waits: list[float] = []

    async def one(model: str, seconds: float) -> None:
        began = world.clock()
        async with await world.queues[model].acquire(None):
            waits.append(world.clock() - began)
            assert world.held() <= world.budget
            assert world.manager.table.used_host_bytes() <= world.manager.table.host_budget
            await asyncio.sleep(seconds)

    tasks = []
    for _ in range(REQUESTS):
        await asyncio.sleep(rng.expovariate(rate))
        (model,) = rng.choices(list(LOADS), weights)
        tasks.append(asyncio.create_task(one(model, rng.uniform(0.05, LONGEST_ANSWER))))
    await asyncio.gather(*tasks)  # raises for a dropped request
    await world.manager.close()
    return world, waits


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("min_resident", "rate"), [(2.0, 20.0), (2.0, 0.5), (15.0, 5.0)])
def test_waits_and_loads_are_bounded(min_resident: float, rate: float, skew: float) -> None:
    loop = VirtualLoop()
    try:
        world, waits = loop.run_until_complete(traffic(7, min_resident, rate, skew))
    finally:
        loop.close()
    assert len(waits) == REQUESTS
    assert world.failures == []

    # The models that are not resident and were requested before it, one after the other, and then its own turn. One
    # more if its model was draining, because then the load is requested again after the drain.
    turn = max(PATIENCE, min_resident) + LONGEST_ANSWER + END
    turns = len(LOADS) - FIT + 1
    assert max(waits) <= turns * (turn + max(LOADS.values())), (max(waits), turn)

    # Each of the two places changes its model at most once in min_resident and a load.
    loads = len(world.loads)
    assert loads <= FIT * (loop.now / (min_resident + min(LOADS.values())) + 1)
    for model in LOADS:
        times = [at for at, name in world.loads if name == model]
        left = [at for at, name in world.evictions if name == model]
        for came, went in zip(times, left, strict=False):
            assert went - came >= min_resident, "evicted too soon after its load"


@pytest.mark.parametrize(("host_budget", "slots"), [(310, 4), (510, 6)])
@pytest.mark.parametrize("skew", [0.5, 1.5])
def test_models_that_sleep_keep_the_bound_and_both_budgets(skew: float, host_budget: int, slots: int) -> None:
    """Host memory is for three of five sleeping models, or for all of them, so that nothing is loaded twice."""
    loop = VirtualLoop()
    try:
        world, waits = loop.run_until_complete(traffic(7, 2.0, 5.0, skew, host_budget, slots))
    finally:
        loop.close()
    assert len(waits) == REQUESTS
    assert world.failures == []
    turn = PATIENCE + 2.0 + LONGEST_ANSWER + world.wake_seconds + END  # a sleep takes as long as a wake here
    assert max(waits) <= (len(LOADS) - FIT + 1) * (turn + world.wake_seconds + max(LOADS.values())), max(waits)
    assert world.naps
    if host_budget == 510:
        assert len(world.loads) == len(LOADS)
        assert world.evictions == []
        assert max(waits[REQUESTS // 2 :]) <= (len(LOADS) - FIT + 1) * (turn + world.wake_seconds)
    else:
        assert world.wakes
        assert world.evictions


def test_the_virtual_clock_jumps_and_keeps_the_order() -> None:
    """Two sleepers of the simulator wake in order, without an hour of real time."""
    loop, woke = VirtualLoop(), []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woke.append((seconds, loop.time()))

    async def both() -> None:
        await asyncio.gather(sleeper(3600), sleeper(1800))

    loop.run_until_complete(both())
    loop.close()
    assert woke == [(1800, 1800), (3600, 3600)]
