"""The pure policy: victims are always allowed and never more than necessary."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from runtime.config.budgets import DeviceBudget
from runtime.residency.outlook import plan_all
from runtime.residency.policy import Need, Resident, Snapshot, Victim, is_overdrawn, next_to_leave, plan, to_sleep
from runtime.residency.states import TRANSITIONS, ModelState

NOW = 1000.0


def on_one(size: int) -> tuple[DeviceBudget, ...]:
    return (DeviceBudget("", size),)


def resident(name: str, **more: object) -> Resident:
    values: dict[str, object] = {
        "id": name, "state": ModelState.READY, "bytes": 100, "leases": 0, "last_used": NOW - 50, "loaded_at": NOW - 100,
        "min_resident": 2.0, "drain_deadline": 60.0, "load_seconds": 1.0, "devices": ("",),
    }  # fmt: skip
    return Resident(**{**values, **more})  # type: ignore[arg-type]


def need(size: int = 100, since: float = NOW, patience: float = 1.0) -> Need:
    return Need("new", size, 2.0, since, patience)


def test_free_memory_is_used_first() -> None:
    result = plan(Snapshot(on_one(250), (resident("a"),), 1, NOW), need())
    assert result.verdict == "load"
    assert result.victims == ()


def test_the_plan_names_the_limit_and_its_setting() -> None:
    a = resident("a", host=100)
    slots = plan(Snapshot(on_one(250), (a,), 0, NOW), need())
    assert slots.why == "least recently used leave first, to free a slot, since all 1 are taken (--slots)"
    memory = plan(Snapshot(on_one(150), (replace(a, leases=1),), 1, NOW), need())
    assert memory.why.startswith("it lacks device memory (--device-memory), and all other models are busy")
    host = plan(Snapshot(on_one(250), (a,), 1, NOW, host_budget=150), replace(need(), host=100))
    assert host.lacks == "host memory (--host-memory)"
    both = plan(Snapshot(on_one(150), (a,), 0, NOW), need())
    assert both.lacks == "device memory (--device-memory) and a slot, since all 1 are taken (--slots)"
    for large, setting in ((need(500), "--device-memory"), (replace(need(), host=500), "--host-memory")):
        never = plan(Snapshot(on_one(250), (), 1, NOW, host_budget=150), large)
        assert (never.verdict, setting in never.why) == ("impossible", True)


def test_no_model_leaves_for_a_slot_while_one_may_be_added() -> None:
    a, b = resident("a"), resident("b", leases=1)
    grown = plan(Snapshot(on_one(350), (a, b), 0, NOW, slots_addable=1), need())
    assert (grown.verdict, grown.victims, grown.adds_slot) == ("load", (), True)
    assert grown.why == "enough is free, and a slot is added"
    bounded = plan(Snapshot(on_one(350), (a, b), 0, NOW), need())
    assert ([v.id for v in bounded.victims], bounded.adds_slot) == (["a"], False)
    empty = plan(Snapshot(on_one(350), (a, b), 1, NOW, slots_addable=1), need())
    assert (empty.verdict, empty.adds_slot) == ("load", False), "an empty slot is used first"


def test_a_model_evicted_for_memory_frees_its_slot_too() -> None:
    one = resident("a")
    evicted = plan(Snapshot(on_one(150), (one,), 0, NOW, slots_addable=1), need())
    assert ([v.action for v in evicted.victims], evicted.adds_slot) == (["evict"], False)
    sleeper = replace(one, asleep_bytes=10)
    asleep = plan(Snapshot(on_one(150), (sleeper,), 0, NOW, slots_addable=1), need())
    assert ([v.action for v in asleep.victims], asleep.adds_slot) == (["sleep"], True)
    leaving = replace(one, state=ModelState.UNLOADING)
    assert not plan(Snapshot(on_one(150), (leaving,), 0, NOW, slots_addable=1), need()).adds_slot


def test_each_of_several_loads_uses_one_of_the_addable_slots() -> None:
    needs = [replace(need(), id=name) for name in "abc"]
    plans = plan_all(Snapshot(on_one(1000), (resident("z"),), 0, NOW, slots_addable=2), needs)
    assert [(p.adds_slot, len(p.victims)) for p in plans] == [(True, 0), (True, 0), (False, 1)]


def test_the_least_recently_used_idle_model_is_evicted() -> None:
    a, b = resident("a", last_used=NOW - 10), resident("b", last_used=NOW - 90)
    result = plan(Snapshot(on_one(250), (a, b), 1, NOW), need())
    assert [v.id for v in result.victims] == ["b"]
    assert result.victims[0].action == "evict"


def test_among_similarly_idle_models_the_one_that_loads_fastest_is_evicted() -> None:
    slow = resident("slow", last_used=NOW - 50.5, load_seconds=30.0)
    quick = resident("quick", last_used=NOW - 50.0, load_seconds=1.0)
    result = plan(Snapshot(on_one(250), (slow, quick), 1, NOW), need())
    assert [v.id for v in result.victims] == ["quick"]


def test_the_next_victim_is_known_for_each_device_before_room_is_needed() -> None:
    budgets = (DeviceBudget("0", 1000), DeviceBudget("1", 1000), DeviceBudget("2", 1000))
    held = (
        resident("fresh", devices=("0",), loaded_at=NOW - 1, last_used=NOW - 500),
        resident("old", devices=("0",), last_used=NOW - 90),
        resident("older", devices=("0",), last_used=NOW - 95, pinned=True),
        resident("dozing", devices=("1",), asleep_bytes=10),
        resident("busy", devices=("2",), leases=1),
    )
    result = next_to_leave(Snapshot(budgets, held, 0, NOW))
    assert [(victim.id, victim.action) for victim in result] == [("old", "evict"), ("dozing", "sleep")]
    assert next_to_leave(Snapshot(budgets, (), 3, NOW)) == ()


def test_a_recently_loaded_model_stays_and_the_plan_says_when_to_retry() -> None:
    result = plan(Snapshot(on_one(150), (resident("a", loaded_at=NOW - 1.5),), 1, NOW), need(since=NOW - 10))
    assert result.verdict == "wait"
    assert result.retry_at == NOW + 0.5


def test_a_wait_of_unknown_length_is_expected_to_last_as_long_as_the_load() -> None:
    loading = resident("a", state=ModelState.LOADING)
    result = plan(Snapshot(on_one(150), (loading,), 1, NOW), need(since=NOW - 10))
    assert (result.verdict, result.retry_at, result.expected_seconds) == ("wait", None, 2.0)


def test_a_busy_model_drains_only_after_the_patience() -> None:
    busy = Snapshot(on_one(150), (resident("a", leases=3),), 1, NOW)
    assert plan(busy, need(since=NOW - 0.5)).verdict == "wait"
    late = plan(busy, need(since=NOW - 1.5))
    assert late.verdict == "load"
    assert late.victims[0].action == "drain"


def test_a_busy_model_drains_at_the_time_that_the_plan_named() -> None:
    busy = Snapshot(on_one(150), (resident("a", leases=3),), 1, NOW)
    retry_at = plan(busy, need()).retry_at
    assert retry_at == NOW + 1.0
    assert plan(replace(busy, now=retry_at), need()).verdict == "load"


def test_a_drain_adds_at_most_five_seconds_to_the_expected_time() -> None:
    for deadline, expected in ((3.0, 5.0), (60.0, 7.0)):
        busy = resident("a", leases=1, drain_deadline=deadline)
        assert plan(Snapshot(on_one(150), (busy,), 1, NOW), need(since=NOW - 2)).expected_seconds == expected


def test_an_impossible_plan_states_the_sizes() -> None:
    pinned = resident("fixed", pinned=True, bytes=100)
    result = plan(Snapshot(on_one(150), (pinned,), 1, NOW), need(60))
    assert result.verdict == "impossible"
    assert "60 B" in result.why
    assert "150 B" in result.why
    assert "fixed" in result.why


def test_a_model_is_evicted_for_its_slot_if_memory_is_free() -> None:
    result = plan(Snapshot(on_one(10_000), (resident("a"),), 0, NOW), need())
    assert [v.id for v in result.victims] == ["a"]


def sleeper(name: str, **more: object) -> Resident:
    """Return a model of 100 bytes that holds 5 on the device and 90 on the host while asleep."""
    values: dict[str, object] = {"asleep_bytes": 5, "asleep_host": 90, "wake_seconds": 0.5, "host": 10}
    return resident(name, **{**values, **more})


def asleep(name: str, **more: object) -> Resident:
    return sleeper(name, **{"state": ModelState.ASLEEP, "bytes": 5, "host": 90, **more})


def acts(them: tuple[Resident, ...], one: Need, *, budget: int = 105, host: int = 1000, slots: int = 1) -> list[str]:
    result = plan(Snapshot(on_one(budget), them, slots, NOW, host), one)
    assert result.verdict in ("load", "wake"), result
    return [f"{v.action} {v.id}" for v in result.victims]


def test_a_victim_sleeps_if_it_can_and_otherwise_ends() -> None:
    assert acts((sleeper("a"),), need()) == ["sleep a"]
    assert acts((resident("a"),), need()) == ["evict a"]


def test_the_device_memory_of_a_sleeping_model_counts() -> None:
    assert acts((sleeper("a"),), need(), budget=104) == ["evict a"]


def test_a_busy_victim_that_can_sleep_sleeps() -> None:
    assert acts((sleeper("a", leases=2),), need(since=NOW - 2)) == ["sleep a"]


def test_a_victim_ends_without_host_memory_for_its_sleep() -> None:
    assert acts((sleeper("a"),), need(), host=89) == ["evict a"]


def test_a_victim_sleeps_after_all_if_the_end_of_another_leaves_host_memory_for_it() -> None:
    small, large = (resident(name, asleep_bytes=10, asleep_host=host) for name, host in (("a", 30), ("b", 70)))
    room = Snapshot(on_one(200), (small, replace(large, last_used=NOW - 20)), 1, NOW, host_budget=60)
    result = plan(room, need(180))
    assert [(v.id, v.action) for v in result.victims] == [("a", "sleep"), ("b", "evict")]


def test_the_least_recently_used_sleeper_ends_first_for_host_memory() -> None:
    young, old = asleep("young", last_used=NOW - 60), asleep("old", last_used=NOW - 90)
    result = acts((sleeper("a"), young, old), need(), budget=110, host=200)
    assert result == ["evict old", "sleep a"]


def test_a_sleeping_model_ends_for_a_slot_before_an_awake_one() -> None:
    them = (sleeper("a", last_used=NOW - 90), asleep("b", last_used=NOW - 10))
    assert acts(them, need(10), budget=1000, slots=0) == ["evict b"]


def test_without_a_free_slot_a_victim_ends_instead_of_sleeping() -> None:
    assert acts((sleeper("a"),), need(), slots=0) == ["evict a"]


def test_a_wake_uses_the_memory_of_one_that_falls_asleep() -> None:
    them = (sleeper("a"), asleep("new"))
    result = plan(Snapshot(on_one(110), them, 0, NOW, 1000), replace(need(), host=90))
    assert (result.verdict, [v.action for v in result.victims]) == ("wake", ["sleep"])


def test_a_model_falling_asleep_is_not_counted_twice() -> None:
    them = (sleeper("a", state=ModelState.DRAINING, falling_asleep=True),)
    assert acts(them, need()) == []
    assert plan(Snapshot(on_one(105), them, 0, NOW), need()).verdict == "wait", "it keeps its slot"


def test_a_loads_expected_time_includes_the_slowest_sleep_of_its_victims() -> None:
    going = sleeper("going", state=ModelState.DRAINING, falling_asleep=True, sleep_seconds=3.0)
    crowded = plan(Snapshot(on_one(150), (going,), 1, NOW), need())
    assert (crowded.victims, crowded.expected_seconds) == ((), 5.0)
    assert plan(Snapshot(on_one(250), (going,), 1, NOW), need()).expected_seconds == 2.0, "it does not wait for memory"
    for seconds, expected in ((1.0, 5.0), (4.0, 6.0)):
        both = plan(Snapshot(on_one(150), (going, sleeper("a", sleep_seconds=seconds)), 1, NOW), need())
        assert ([v.id for v in both.victims], both.expected_seconds) == (["a"], expected)


def test_a_model_on_another_device_leaves_for_host_memory() -> None:
    budgets = (DeviceBudget("0", 100), DeviceBudget("1", 100))
    one = replace(need(), host=100, devices=("0",))
    for asleep_bytes, action in ((None, "evict"), (5, "sleep")):
        there = resident("a", devices=("1",), host=100, asleep_bytes=asleep_bytes)
        result = plan(Snapshot(budgets, (there,), 1, NOW, host_budget=150), one)
        assert [(v.id, v.action) for v in result.victims] == [("a", action)]


def test_among_similarly_idle_models_the_one_that_wakes_fastest_leaves() -> None:
    slow = resident("slow", last_used=NOW - 50.5, load_seconds=30.0)
    quick = sleeper("quick", last_used=NOW - 50.0, load_seconds=30.0)
    assert acts((slow, quick), need(), budget=250) == ["sleep quick"]


def test_an_impossible_plan_states_the_sizes_of_host_memory() -> None:
    result = plan(Snapshot(on_one(1000), (asleep("fixed", pinned=True),), 1, NOW, 100), replace(need(), host=60))
    assert result.verdict == "impossible"
    for words in ("60 Bytes of host memory", "100 Bytes", "fixed", "--host-memory"):
        assert words in result.why


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
        wake_seconds=st.floats(0, 2),
        host=st.integers(0, 200),
        asleep_bytes=st.none() | st.integers(0, 100),
        asleep_host=st.integers(0, 500),
        falling_asleep=st.booleans(),
    ),
    max_size=8,
).map(tuple)


def bytes_after(them: tuple[Resident, ...], victims: tuple[Victim, ...]) -> tuple[int, int, int]:
    """Count device bytes, host bytes and slots after all victims and leaving models have left."""
    actions = {v.id: v.action for v in victims}
    device = host = slots = 0
    for r in them:
        leaving = r.state in (ModelState.DRAINING, ModelState.UNLOADING)
        sleeps = actions.get(r.id) == "sleep" or (r.state is ModelState.DRAINING and r.falling_asleep)
        if sleeps:
            device, host, slots = device + (r.asleep_bytes or 0), host + r.asleep_host, slots + 1
        elif r.id not in actions and not leaving:
            device, host, slots = device + r.bytes, host + r.host, slots + 1
    return device, host, slots


def gentler(victims: tuple[Victim, ...], them: tuple[Resident, ...]) -> Iterator[tuple[Victim, ...]]:
    """Yield the same victims without one of them, or with one that sleeps instead of ending."""
    by_id = {r.id: r for r in them}
    for place, victim in enumerate(victims):
        yield victims[:place] + victims[place + 1 :]
        r = by_id[victim.id]
        if victim.action != "sleep" and r.asleep_bytes is not None and r.state is not ModelState.ASLEEP:
            yield (*victims[:place], replace(victim, action="sleep"), *victims[place + 1 :])


@given(
    residents, st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 3), st.integers(0, 800), st.integers(0, 500),
    st.floats(0, 5),
)  # fmt: skip
def test_victims_are_allowed_sufficient_and_necessary(
    them: tuple[Resident, ...], budget: int, host_budget: int, slots: int, size: int, host: int, waited: float
) -> None:
    one = replace(need(size, since=NOW - waited), host=host)
    result = plan(Snapshot(on_one(budget), them, slots, NOW, host_budget), one)
    by_id = {r.id: r for r in them}
    for victim in result.victims:
        r = by_id[victim.id]
        assert not r.pinned
        assert r.state in (ModelState.READY, ModelState.ASLEEP)
        assert r.state is ModelState.ASLEEP or r.loaded_at + r.min_resident <= NOW
        assert not r.leases or waited >= 1.0
        if victim.action == "sleep":
            assert r.state is ModelState.READY
            assert r.asleep_bytes is not None

    def enough(victims: tuple[Victim, ...]) -> bool:
        device, on_host, taken = bytes_after(them, victims)
        return device + size <= budget and on_host + host <= host_budget and taken < slots + len(them)

    if result.verdict == "load":
        assert enough(result.victims)
        for fewer in gentler(result.victims, them):
            assert not enough(fewer), "one victim too many, or one ends that could sleep"
    if result.verdict == "wait":
        assert size <= budget
        may = [r for r in them if not r.pinned and r.state in (ModelState.READY, ModelState.ASLEEP)]
        ripe = [r for r in may if r.state is ModelState.ASLEEP or r.loaded_at + r.min_resident <= NOW]
        pool = [r for r in ripe if waited >= 1.0 or not r.leases]
        assert not enough(tuple(Victim(r.id, r.bytes, r.leases, "evict") for r in pool)), "it need not wait"


@given(residents, st.integers(0, 2000), st.integers(0, 2000))
def test_a_wake_needs_no_slot_and_reuses_its_own_memory(
    them: tuple[Resident, ...], budget: int, host_budget: int
) -> None:
    own = resident("new", state=ModelState.ASLEEP, bytes=10, host=100, asleep_bytes=10, asleep_host=100)
    one = replace(need(100, since=NOW - 2), host=100)
    result = plan(Snapshot(on_one(budget), (*them, own), 0, NOW, host_budget), one)
    assert result.verdict in ("wake", "wait", "impossible")
    assert "new" not in [v.id for v in result.victims]
    if result.verdict == "wake":
        device, on_host, _ = bytes_after(them, result.victims)
        assert device + 100 <= budget
        assert on_host + 100 <= host_budget


@given(residents, st.integers(0, 2000), st.integers(0, 2000))
def test_a_budget_is_overdrawn_if_a_plan_finds_less_than_nothing_free(
    them: tuple[Resident, ...], budget: int, host_budget: int
) -> None:
    snapshot = Snapshot(on_one(budget), them, 1, NOW, host_budget)
    result = plan(snapshot, Need("", 0, 0.0, NOW, slot=False, devices=("",)))
    assert is_overdrawn(snapshot, "") is (result.free < 0 or result.host_free < 0)


@given(residents, st.integers(0, 2000))
def test_an_idle_model_sleeps_only_in_memory_that_is_free_or_of_older_sleepers(
    them: tuple[Resident, ...], host_budget: int
) -> None:
    idle = resident("idle", last_used=NOW - 30, host=10, asleep_bytes=5, asleep_host=200)
    result = to_sleep(Snapshot(on_one(1000), (*them, idle), 1, NOW, host_budget), "idle")
    older = [r for r in them if r.state is ModelState.ASLEEP and not r.pinned]
    older = [r for r in older if r.last_used + r.load_seconds < idle.last_used + idle.wake_seconds]
    asleep = (Victim("idle", 100, 0, "sleep"),)
    if result is None:
        ends = tuple(Victim(r.id, r.bytes, 0, "evict") for r in older)
        assert bytes_after((*them, idle), (*asleep, *ends))[1] > host_budget
    else:
        assert {v.id for v in result} <= {r.id for r in older}
        assert bytes_after((*them, idle), (*asleep, *result))[1] <= host_budget


def test_every_state_can_be_left() -> None:
    assert set(TRANSITIONS) == set(ModelState)
    assert all(TRANSITIONS.values())
