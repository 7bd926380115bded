"""Properties of the pure policy: it never takes what it may not, and never takes more than it must."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.residency.policy import Need, Resident, Snapshot, plan
from runtime.residency.states import TRANSITIONS, ModelState

NOW = 1000.0


def resident(name: str, **more: object) -> Resident:
    values: dict[str, object] = {
        "id": name, "state": ModelState.READY, "bytes": 100, "leases": 0, "last_used": NOW - 50, "loaded_at": NOW - 100,
        "min_resident": 2.0, "drain_deadline": 60.0, "load_seconds": 1.0,
    }  # fmt: skip
    return Resident(**{**values, **more})  # type: ignore[arg-type]


def need(size: int = 100, since: float = NOW, patience: float = 1.0) -> Need:
    return Need("new", size, 2.0, since, patience)


def test_free_room_is_used_first() -> None:
    found = plan(Snapshot(250, (resident("a"),), 1, NOW), need())
    assert found.verdict == "load"
    assert found.victims == ()


def test_least_recently_used_idle_one_leaves() -> None:
    a, b = resident("a", last_used=NOW - 10), resident("b", last_used=NOW - 90)
    found = plan(Snapshot(250, (a, b), 1, NOW), need())
    assert [v.id for v in found.victims] == ["b"]
    assert found.victims[0].action == "evict"


def test_of_two_idle_for_about_as_long_the_cheap_one_leaves() -> None:
    slow = resident("slow", last_used=NOW - 50.5, load_seconds=30.0)
    quick = resident("quick", last_used=NOW - 50.0, load_seconds=1.0)
    found = plan(Snapshot(250, (slow, quick), 1, NOW), need())
    assert [v.id for v in found.victims] == ["quick"]


def test_just_loaded_stays_and_the_plan_says_when_to_ask_again() -> None:
    found = plan(Snapshot(150, (resident("a", loaded_at=NOW - 1.5),), 1, NOW), need(since=NOW - 10))
    assert found.verdict == "wait"
    assert found.retry_at == NOW + 0.5


def test_busy_one_drains_only_when_patience_is_over() -> None:
    busy = Snapshot(150, (resident("a", leases=3),), 1, NOW)
    assert plan(busy, need(since=NOW - 0.5)).verdict == "wait"
    late = plan(busy, need(since=NOW - 1.5))
    assert late.verdict == "load"
    assert late.victims[0].action == "drain"


def test_what_can_never_fit_states_the_sum() -> None:
    pinned = resident("kept", pinned=True, bytes=100)
    found = plan(Snapshot(150, (pinned,), 1, NOW), need(60))
    assert found.verdict == "impossible"
    assert "60 B" in found.why
    assert "150 B" in found.why
    assert "kept" in found.why


def test_a_slot_is_needed_as_well_as_bytes() -> None:
    found = plan(Snapshot(10_000, (resident("a"),), 0, NOW), need())
    assert [v.id for v in found.victims] == ["a"]


residents = st.lists(
    st.builds(
        resident,
        st.uuids().map(str),
        state=st.sampled_from([s for s in ModelState if s not in (ModelState.ABSENT, ModelState.FAILED)]),
        bytes=st.integers(0, 500),
        leases=st.integers(0, 3),
        last_used=st.floats(0, NOW),
        loaded_at=st.floats(NOW - 10, NOW),
        pinned=st.booleans(),
        load_seconds=st.floats(0, 60),
    ),
    max_size=8,
).map(tuple)


@given(residents, st.integers(0, 2000), st.integers(0, 3), st.integers(0, 800), st.floats(0, 5))
def test_never_a_pinned_fresh_or_foreign_victim_and_always_enough(
    them: tuple[Resident, ...], budget: int, slots: int, size: int, waited: float
) -> None:
    found = plan(Snapshot(budget, them, slots, NOW), need(size, since=NOW - waited))
    by_id = {r.id: r for r in them}
    for victim in found.victims:
        r = by_id[victim.id]
        assert not r.pinned
        assert r.state in (ModelState.READY, ModelState.ASLEEP)
        assert r.loaded_at + r.min_resident <= NOW
        assert not r.leases or waited >= 1.0
    if found.verdict == "load":
        stays = sum(
            r.bytes
            for r in them
            if r.id not in {v.id for v in found.victims} and r.state not in (ModelState.DRAINING, ModelState.UNLOADING)
        )
        assert stays + size <= budget
        for victim in found.victims:  # not one too many: without it bytes or slots are missing
            leaving = sum(r.state in (ModelState.DRAINING, ModelState.UNLOADING) for r in them)
            too_big = stays + victim.bytes + size > budget
            no_slot = slots + leaving + len(found.victims) - 1 <= 0
            assert too_big or no_slot
    if found.verdict == "wait":
        assert size <= budget


def test_every_state_can_be_left() -> None:
    assert set(TRANSITIONS) == set(ModelState)
    assert all(TRANSITIONS.values())
