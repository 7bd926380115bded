"""Models on several devices: allowed sets of devices, victims, and bytes on each device.

EVENTS=100000 with --timeout 0 runs more random events.
"""

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config.budgets import DeviceBudget, groups
from runtime.residency.outlook import after
from runtime.residency.policy import Need, Resident, Snapshot, plan, replica_id
from tests.unit.residency.test_policy import NOW, resident

EIGHT = tuple(DeviceBudget(f"cuda:{number}", 100) for number in range(8))
FOUR = EIGHT[:4]
EVENTS = int(os.environ.get("EVENTS", "5000"))


def need(size: int, spread: int, since: float = NOW) -> Need:
    return Need("new", size, 2.0, since, spread=spread)


@pytest.mark.parametrize(
    ("size", "sets"),
    [
        (1, [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)]),
        (2, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (3, [(0, 1, 2), (3, 4, 5)]),
        (4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (8, [tuple(range(8))]),
        (16, []),
    ],
)
def test_sets_of_devices_are_neighbours(size: int, sets: list[tuple[int, ...]]) -> None:
    assert [tuple(budget.number for budget in group) for group in groups(EIGHT, size)] == sets


def test_a_set_with_a_lost_device_is_not_allowed() -> None:
    left = tuple(budget for budget in EIGHT if budget.number != 2)
    assert [group[0].number for group in groups(left, 2)] == [0, 4, 6]


def test_a_single_device_needs_no_number() -> None:
    one = (DeviceBudget("cpu", 100),)
    assert (groups(one, 1), groups(one, 2)) == ([one], [])


def test_a_free_set_is_used_before_anything_is_evicted() -> None:
    result = plan(Snapshot(FOUR, (resident("a", devices=("cuda:1",)),), 1, NOW), need(80, 2))
    assert (result.verdict, result.devices, result.victims) == ("load", ("cuda:2", "cuda:3"), ())


def test_the_set_with_the_fewest_victims_is_chosen() -> None:
    """Two models would have to leave 0-1, but only one 2-3."""
    them = (
        resident("a", devices=("cuda:0",), last_used=0.0), resident("b", devices=("cuda:1",), last_used=0.0),
        resident("c", devices=("cuda:2",), bytes=90), resident("d", devices=("cuda:3",), bytes=20),
    )  # fmt: skip
    result = plan(Snapshot(FOUR, them, 1, NOW), need(80, 2))
    assert (result.devices, [v.id for v in result.victims]) == (("cuda:2", "cuda:3"), ["c"])
    assert (result.free, result.budget) == (10, 100)


def test_both_devices_of_a_set_must_have_room() -> None:
    them = (
        resident("a", devices=("cuda:0",), bytes=60), resident("b", devices=("cuda:1",), bytes=60, pinned=True),
        resident("c", devices=("cuda:2", "cuda:3"), bytes=60, pinned=True),
    )  # fmt: skip
    result = plan(Snapshot(FOUR, them, 1, NOW), need(50, 2))
    assert result.verdict == "impossible"
    assert "on each of 2 devices" in result.why


def test_a_model_on_two_devices_may_leave_for_one_on_a_single_device() -> None:
    result = plan(Snapshot(FOUR[:2], (resident("a", devices=("cuda:0", "cuda:1")),), 1, NOW), need(30, 1))
    assert (result.verdict, [v.id for v in result.victims]) == ("load", ["a"])


def test_a_model_on_more_devices_than_there_are_is_impossible() -> None:
    result = plan(Snapshot(FOUR, (), 1, NOW), need(10, 8))
    assert result.verdict == "impossible"
    assert "new is spread over 8 adjacent devices (0-7, 8-15, ...)" in result.why
    assert "the server has cuda:0, cuda:1, cuda:2, cuda:3" in result.why


anybody = st.builds(
    resident,
    name=st.uuids().map(str),
    devices=st.sampled_from(
        [("cuda:0",), ("cuda:1",), ("cuda:2",), ("cuda:3",), ("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]
    ),
    bytes=st.integers(1, 60),
    pinned=st.booleans(),
    leases=st.integers(0, 2),
    last_used=st.floats(0, NOW),
)


@given(st.lists(anybody, max_size=8), st.integers(1, 120), st.sampled_from([1, 2, 4]), st.integers(0, 2))
def test_a_load_fits_each_of_its_devices_once_its_victims_have_left(
    them: list[Resident], size: int, spread: int, slots: int
) -> None:
    result = plan(Snapshot(FOUR, tuple(them), slots, NOW), need(size, spread, since=0.0))
    gone = {victim.id for victim in result.victims}
    if result.verdict == "load":
        assert len(result.devices) == spread
        for device in result.devices:
            assert sum(r.bytes for r in them if device in r.devices and r.id not in gone) + size <= 100
        if slots:
            assert all(set(r.devices) & set(result.devices) for r in them if r.id in gone)
    if result.verdict == "impossible":
        for group in groups(FOUR, spread):
            assert any(
                sum(r.bytes for r in them if budget.device in r.devices and r.pinned) + size > budget.bytes
                for budget in group
            )


@pytest.mark.long
def test_bytes_stay_within_each_budget_under_many_events() -> None:
    """Models on one to eight devices, with up to three replicas, are loaded, used and ended."""
    rng, loads, evicted = random.Random(45), 0, 0
    widths = {f"m{number}": rng.choice([1, 1, 2, 4, 8]) for number in range(30)}
    sizes = {name: rng.randint(5, 95) for name in widths}
    now = Snapshot(EIGHT, (), 12, 0.0)
    for event in range(EVENTS):
        model, number = rng.choice(list(widths)), rng.choice([1, 1, 2, 3])
        name, there = replica_id(model, number), {one.id: one for one in now.residents}
        now = replace(now, now=float(event))
        if rng.random() < 0.1:
            left = tuple(one for one in now.residents if one.id != name)
            now = replace(now, residents=left, slots_free=now.slots_free + len(there) - len(left))
            continue
        if name in there:
            used = replace(there[name], last_used=now.now, leases=rng.choice([0, 0, 1]), is_extra=number == 3)
            now = replace(now, residents=(*(one for one in now.residents if one.id != name), used))
            continue
        request = Need(name, sizes[model], 1.0, now.now - rng.choice([0.0, 5.0]), spread=widths[model])
        made = plan(now, request)
        assert made.verdict in ("load", "wait")
        assert all(victim.id.partition("#")[0] != model for victim in made.victims)
        now = after(now, request, made)
        loads, evicted = loads + (made.verdict == "load"), evicted + len(made.victims)
        assert len(made.devices) == widths[model]
        assert len(now.residents) + now.slots_free == 12
        assert now.slots_free >= 0
        for budget in EIGHT:
            assert sum(one.bytes for one in now.residents if budget.device in one.devices) <= budget.bytes
    assert loads > EVENTS // 10
    assert evicted > loads // 10
