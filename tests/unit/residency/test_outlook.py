"""Successive plans for the replicas of a model, as `models plan` prints them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from runtime.residency.outlook import after, plan_all
from runtime.residency.policy import Need, Snapshot, plan, replica_id
from runtime.residency.states import ModelState
from tests.unit.residency.devices.test_groups import FOUR, anybody
from tests.unit.residency.test_policy import NOW, resident


def needs(size: int, spread: int = 1, replicas: int = 2) -> list[Need]:
    return [Need(replica_id("new", number), size, 2.0, NOW, spread=spread) for number in range(1, replicas + 1)]


def test_each_replica_gets_its_own_set_of_devices() -> None:
    plans = plan_all(Snapshot(FOUR, (), 4, NOW), needs(60, spread=2))
    assert [plan.devices for plan in plans] == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]
    assert [(room.free, room.budget) for plan in plans for room in plan.room] == [(100, 100)] * 4


def test_no_replica_makes_room_for_another_of_its_model() -> None:
    plans = plan_all(Snapshot(FOUR[:1], (), 4, NOW), needs(60))
    assert [one.verdict for one in plans] == ["load", "wait"]


def test_each_replica_has_its_own_victims_and_slot() -> None:
    old = tuple(resident(f"old{number}", devices=(f"cuda:{number}",)) for number in range(4))
    plans = plan_all(Snapshot(FOUR, old, 0, NOW), needs(60, replicas=3))
    assert len({victim.id for one in plans for victim in one.victims}) == 3
    plans = plan_all(Snapshot(FOUR, (), 2, NOW), needs(60, replicas=3))
    assert [one.verdict for one in plans] == ["load", "load", "wait"]


def test_each_replica_has_its_own_added_slot() -> None:
    plans = plan_all(Snapshot(FOUR, (), 1, NOW, slots_addable=2), needs(60, replicas=4))
    assert [(one.verdict, one.adds_slot) for one in plans] == [
        ("load", False), ("load", True), ("load", True), ("wait", False),
    ]  # fmt: skip


def test_a_resident_replica_needs_nothing() -> None:
    first = resident("new", devices=("cuda:0",), bytes=60)
    plans = plan_all(Snapshot(FOUR, (first,), 1, NOW), needs(60))
    assert [one.verdict for one in plans] == ["resident", "load"]


def test_a_model_that_falls_asleep_keeps_its_slot_and_takes_host_memory() -> None:
    sleeper = resident("old", devices=("cuda:0",), asleep_bytes=10, asleep_host=50, wake_seconds=0.1)
    before = Snapshot(FOUR[:1], (sleeper,), 1, NOW, host_budget=100)
    (need,) = needs(60, replicas=1)
    made = plan(before, need)
    assert [victim.action for victim in made.victims] == ["sleep"]
    then = after(before, need, made)
    assert {(one.id, one.state, one.bytes, one.host) for one in then.residents} == {
        ("old", ModelState.ASLEEP, 10, 50),
        ("new", ModelState.READY, 60, 0),
    }
    assert then.slots_free == 0


@given(st.lists(anybody, max_size=8), st.integers(1, 100), st.sampled_from([1, 2]), st.integers(0, 3))
def test_no_plan_overdraws_what_earlier_plans_left(them: list[object], size: int, spread: int, slots: int) -> None:
    snapshot = Snapshot(FOUR, tuple(them), slots, NOW)  # type: ignore[arg-type]
    for need in needs(size, spread, replicas=4):
        need = replace(need, waiting_since=0.0)
        made = plan(snapshot, need)
        held = {one.device: sum(r.bytes for r in snapshot.residents if one.device in r.devices) for one in FOUR}
        snapshot = after(snapshot, need, made)
        assert snapshot.slots_free >= 0
        for budget in FOUR:
            now = sum(r.bytes for r in snapshot.residents if budget.device in r.devices)
            assert now <= max(budget.bytes, held[budget.device])
