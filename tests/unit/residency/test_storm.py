"""Invariants under requests, unloads, deaths, failing loads and engines that fail to sleep or wake, in any order.

The manager and the queues are real, the clock is virtual. STORMS=3000 runs more examples.
"""

import asyncio
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.messages import MemoryFootprint
from runtime.residency.table import log
from tests.fakes.virtual import run
from tests.unit.residency.storm import DRAIN, MortalLink, Storm, Unmapped

STORMS = int(os.environ.get("STORMS", "120"))
LOADS = {"a": 3.0, "b": 1.0, "c": 0.5, "d": 2.0}
BYTES = {"a": 200, "b": 100, "c": 50, "d": 100}
QUIET = 3600.0
"""The virtual seconds after the last action in which the world has to come to rest."""
REFUSALS = frozenset({"model_failed", "engine_died", "bad_weights", "out_of_memory", "drained", "killed", "no_slot"})

MODELS = st.sampled_from(sorted(LOADS))
SECONDS = st.sampled_from([0.0, 0.2, 2.0, 30.0])
GAPS = st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.55, 1.0, 5.0])
ACTIONS = st.one_of(
    st.tuples(st.just("ask"), MODELS, SECONDS),
    st.tuples(st.just("ask"), MODELS, SECONDS),
    st.tuples(st.sampled_from(["load", "unload", "kill", "kill", "insomnia"]), MODELS, st.just(0.0)),
    st.tuples(st.sampled_from(["bad_weights", "out_of_memory", "no_slot"]), MODELS, st.just(0.0)),
)


Actions = list[tuple[tuple[str, str, float], float]]


async def storm(actions: Actions, sleepers: set[str], host: int, slots: int, **more: Any) -> None:
    world = Storm(
        bytes=BYTES, seconds=LOADS, budget=250, slots=slots, host_budget=host,
        residency={"min_resident": 0.5, "drain_deadline": DRAIN, "idle_timeout": 40, "sleep_timeout": 40},
        wake_seconds=0.4,
        asleep={name: MemoryFootprint(device_bytes=10, host_bytes=100) for name in sleepers},
        **more,
    )  # fmt: skip
    unmapped = Unmapped(world.faults)
    log.addHandler(unmapped)
    asyncio.get_running_loop().set_exception_handler(lambda _, reported: world.faults.append(str(reported)))
    try:
        await weather(world, actions)
    finally:
        log.removeHandler(unmapped)


async def weather(world: Storm, actions: Actions) -> None:
    watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=7.0, hung_after=30.0))
    tasks: list[asyncio.Task[None]] = []
    for (what, model, seconds), gap in actions:
        replicas = world.manager.entries[model].replicas
        entry = next((one for one in reversed(replicas) if one.link is not None), replicas[0])
        match what:
            case "ask":
                tasks.append(asyncio.create_task(world.ask(model, seconds)))
            case "load" | "unload":
                tasks.append(asyncio.create_task(world.load_or_unload(model, what == "load")))
            case "insomnia":
                world.insomniacs.add(model)
            case "bad_weights" | "out_of_memory":
                world.spoiled[model] = what
            case "no_slot":
                world.lacking += 1
            case "kill" if isinstance(entry.link, MortalLink):
                tasks.append(asyncio.create_task(entry.link.die()))
        end = world.clock() + gap
        while world.clock() < end:
            await asyncio.sleep(min(0.025, end - world.clock()))
            world.check()
    waiting, end = set(tasks), world.clock() + QUIET
    while waiting and world.clock() < end:
        _, waiting = await asyncio.wait(waiting, timeout=1.0)
        world.check()
    states = {entry.id: entry.state.value for entry in world.manager.entries.values()}
    assert not waiting, f"{len(waiting)} wait for ever: {states}"
    for task in tasks:
        await task  # raises a failed assertion
    await asyncio.sleep(200.0)  # back-offs, idle time-outs
    world.check_rest()
    asks = sum(what == "ask" for (what, _, _), _ in actions)
    assert world.answered + len(world.refused) == asks
    assert set(world.refused) <= REFUSALS
    watching.cancel()
    await world.manager.close()


@settings(max_examples=STORMS, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(st.tuples(ACTIONS, GAPS), min_size=15, max_size=40),
    sleepers=st.sets(MODELS),
    host=st.sampled_from([130, 250, 1000]),
    slots=st.integers(2, 4),
)
@pytest.mark.long
def test_nothing_is_lost_and_no_request_waits_for_ever(
    actions: Actions, sleepers: set[str], host: int, slots: int
) -> None:
    run(storm(actions, sleepers, host, slots))


@settings(max_examples=STORMS, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(st.tuples(ACTIONS, GAPS), min_size=15, max_size=40),
    sleepers=st.sets(MODELS),
    host=st.sampled_from([130, 1000]),
    slots=st.integers(2, 5),
)
@pytest.mark.long
def test_the_same_holds_for_models_with_replicas(actions: Actions, sleepers: set[str], host: int, slots: int) -> None:
    """Two requests fill a replica, so that further ones are added while requests take 30 s."""
    replicas = {"b": {"least": 2}, "c": {"least": 1, "most": 3}, "d": {"most": 2}}
    run(storm(actions, sleepers, host, slots, replicas=replicas, at_once=2))


@settings(max_examples=STORMS // 3, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(st.tuples(ACTIONS, GAPS), min_size=15, max_size=40),
    sleepers=st.sets(st.sampled_from("bc")),
    slots=st.integers(2, 4),
    wide=st.sampled_from([{"a": 2}, {"a": 2, "d": 2}, {"a": 4, "d": 2}]),
)
@pytest.mark.long
def test_the_same_holds_for_models_on_several_devices(
    actions: Actions, sleepers: set[str], slots: int, wide: dict[str, int]
) -> None:
    run(storm(actions, sleepers, 1000, slots, parts=4, spread=wide))


@settings(max_examples=STORMS // 3, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(st.tuples(ACTIONS, GAPS), min_size=15, max_size=40),
    sleepers=st.sets(st.sampled_from("c")),
    slots=st.integers(2, 6),
)
@pytest.mark.long
def test_the_same_holds_for_replicas_on_several_devices(actions: Actions, sleepers: set[str], slots: int) -> None:
    replicas = {"b": {"least": 2}, "c": {"least": 1, "most": 3}, "d": {"most": 2}}
    run(storm(actions, sleepers, 1000, slots, parts=4, spread={"a": 4, "b": 2, "d": 2}, replicas=replicas, at_once=2))


def test_a_request_that_waits_for_a_slot_is_served_when_it_is_back() -> None:
    """No other event makes the manager decide again."""
    run(storm([(("ask", "a", 0.0), 5.0), (("unload", "a", 0.0), 0.3), (("ask", "b", 0.0), 0.0)], set(), 1000, slots=1))
