"""The placement of models on nodes: the rules of `fleet.place`, and properties over many steps."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.demand import SMOOTHING_SECONDS, DemandMean, demand_of
from fleet.epochs import DesiredReplicas, may_follow, successor
from fleet.place import GOAL, HIGH, HOLD_SECONDS, LEASE_SECONDS, RETURN_SECONDS, SMALL, FleetPlan, ModelNeed, place
from fleet.reports import DeviceReport, NodeReport, ReplicaReport
from fleet.table import ReportTable
from tests.unit.fleet.made import replica, report, table_of

GIB = 1 << 30


def node(name: str, *gib: int, **fields: object) -> NodeReport:
    devices = (DeviceReport(device=f"cuda:{number}", budget=size * GIB) for number, size in enumerate(gib or (80,)))
    return report(name, devices=tuple(devices), **fields)


def need(model: str, gib: int = 40, **fields: object) -> ModelNeed:
    return ModelNeed(model, gib * GIB, **fields)


def nodes(count: int, *gib: int) -> ReportTable:
    return table_of(node(f"n{number}", *gib) for number in range(count))


def later(table: ReportTable, now: float, names: Iterable[str] | None = None, **fields: object) -> ReportTable:
    """Return the same nodes, or the named ones, with reports of another time."""
    known = {one.report.node: one.report for one in table}
    result = ReportTable()
    for name in known if names is None else names:
        devices = known[name].devices
        result.add(report(name, seq=2, uptime=now, **{"devices": devices, **fields}), now)
    return result


def actions(plan: FleetPlan) -> list[tuple[str, str, str]]:
    return sorted((one.model, one.action, one.why) for one in plan.moves)


def test_each_model_gets_its_minimum_and_then_what_its_demand_needs() -> None:
    plan = place([need("a", least=2), need("b")], nodes(4), {"b": 1.8}, 0.0)
    assert {model: len(names) for model, names in plan.replicas.items()} == {"a": 2, "b": 3}
    assert GOAL * (1 - SMALL / 3) >= 1.8 / 3
    assert plan.unplaced == {}


@pytest.mark.parametrize(("demand", "replicas"), [(0.4, 1), (0.6, 2), (1.3, 3), (6.6, 10), (66.0, 95)])
def test_few_replicas_keep_more_capacity_free(demand: float, replicas: int) -> None:
    assert len(place([need("a", 80)], nodes(100), {"a": demand}, 0.0).replicas["a"]) == replicas


def test_a_model_that_was_removed_leaves_the_plan() -> None:
    before = place([need("a"), need("b")], nodes(1), {}, 0.0)
    after = place([need("b")], nodes(1), {}, 1.0, before)
    assert (after.replicas, after.moves) == ({"b": ("n0",)}, ())


def test_a_plan_that_fits_is_not_changed() -> None:
    models, demand = [need("a", least=2), need("b")], {"a": 1.3, "b": 2.0}
    plan = place(models, nodes(4), demand, 0.0)
    again = place(models, later(nodes(4), 30.0), {"a": 0.1, "b": 0.1}, 30.0, plan)
    assert (again.replicas, again.moves) == (plan.replicas, ())


def test_models_already_on_nodes_count() -> None:
    table = table_of([node("n0", replicas=[replica("a")]), node("n1")])
    assert place([need("a")], table, {}, 0.0).replicas == {"a": ("n0",)}


@pytest.mark.parametrize("devices", [("cuda:0",), ()], ids=["on a device", "on an unknown device"])
def test_models_already_on_a_node_leave_less_room_for_another(devices: tuple[str, ...]) -> None:
    table = table_of([node("n0", replicas=[replica("a", devices=devices)])])
    plan = place([need("a", 50), need("b", 50)], table, {}, 0.0)
    assert plan.replicas == {"a": ("n0",), "b": ()}
    assert plan.unplaced == {"b": "no node has room for it."}


def test_bytes_are_counted_on_each_device() -> None:
    table = table_of([node("n0", 40, 40), node("n1", 30, 30, 30)])
    plan = place([need("wide", 25, devices=3), need("large", 40), need("larger", 50)], table, {}, 0.0)
    assert plan.replicas == {"wide": ("n1",), "large": ("n0",), "larger": ()}
    assert plan.unplaced == {"larger": "no node has room for it."}


def test_a_node_without_a_models_files_is_not_used() -> None:
    plan = place([need("a", least=2, not_on=frozenset(("n0",)))], nodes(2), {}, 0.0)
    assert plan.replicas == {"a": ("n1",)}
    assert "a" in plan.unplaced


def test_models_are_placed_on_the_node_with_the_least_load() -> None:
    plan = place([need("a", 20), need("b", 20), need("c", 20)], nodes(2), {"a": 0.4, "b": 0.3, "c": 0.2}, 0.0)
    (a,), (b,), (c,) = plan.replicas["a"], plan.replicas["b"], plan.replicas["c"]
    assert a != b == c


def test_placements_by_hand_win_over_demand() -> None:
    table = nodes(2, 40)
    before = place([need("a"), need("b")], table, {"a": 0.9, "b": 0.9}, 0.0)
    (there,) = before.replicas["a"]
    plan = place([need("a"), need("b", on=(there,))], later(table, 1.0), {"a": 0.9, "b": 0.9}, 1.0, before)
    assert there in plan.replicas["b"]
    assert there not in plan.replicas["a"]
    assert ("b", "load", "hand") in actions(plan)


def test_the_model_with_the_least_demand_per_replica_makes_room_for_one_by_hand() -> None:
    reports = [node(f"n{n}", 40, replicas=[replica("spread")]) for n in (1, 2)]
    table = table_of([node("n0", 80, replicas=[replica("spread"), replica("alone")]), *reports])
    models = [need("spread"), need("alone"), need("new", on=("n0",))]
    plan = place(models, table, {"spread": 0.6, "alone": 0.3}, 0.0)
    assert plan.replicas == {"spread": ("n1", "n2"), "alone": ("n0",), "new": ("n0",)}
    assert actions(plan) == [("new", "load", "hand"), ("spread", "unload", "room")]


def test_a_number_by_hand_is_exact() -> None:
    table = nodes(6, 40)
    before = place([need("a")], table, {"a": 3.0}, 0.0)
    assert len(before.replicas["a"]) == 5
    fewer = place([need("a", replicas=2)], later(table, 1.0), {"a": 3.0}, 1.0, before)
    assert len(fewer.replicas["a"]) == 2
    none = place([need("a", replicas=0)], later(table, 2.0), {"a": 3.0}, 2.0, fewer)
    assert none.replicas["a"] == ()
    more = place([need("a", replicas=7)], later(table, 3.0), {"a": 3.0}, 3.0, none)
    assert len(more.replicas["a"]) == 6
    assert more.unplaced == {"a": "each node that can load it has it."}


@pytest.mark.parametrize(
    ("there", "expected"),
    [("loading", ("n0", "n1")), ("failed", ("n0", "n1")), ("ready", ("n1",)), ("asleep", ("n1",))],
)
def test_a_model_that_moves_by_hand_stays_until_it_can_answer_there(there: str, expected: tuple[str, ...]) -> None:
    models = [need("a", on=("n1",), replicas=1)]
    table = table_of([node("n0", replicas=[replica("a")]), node("n1")])
    begun = place(models, table, {}, 0.0)
    assert (begun.replicas["a"], actions(begun)) == (("n0", "n1"), [("a", "load", "hand")])
    now = table_of([node("n0", replicas=[replica("a")]), node("n1", replicas=[replica("a", there)])])
    assert place(models, now, {}, 1.0, begun).replicas["a"] == expected


def test_an_unknown_node_placed_by_hand_is_reported() -> None:
    plan = place([need("a", on=("n9",))], nodes(1), {}, 0.0)
    assert plan.unplaced == {"a": "n9 is not there."}


def test_lost_replicas_are_placed_again_after_the_lease() -> None:
    table, models = nodes(3, 40), [need("a")]
    before = place(models, table, {"a": 0.4}, 0.0)
    (gone,) = before.replicas["a"]
    left = [f"n{number}" for number in range(3) if f"n{number}" != gone]
    table = later(table, 5.0, left)
    table.add(node(gone, uptime=0.0), 0.0)
    assert place(models, table, {"a": 0.4}, LEASE_SECONDS, before).moves == ()
    plan = place(models, later(table, 11.0, left), {"a": 0.4}, 11.0, before)
    assert actions(plan) == [("a", "load", "least")]
    assert gone in plan.away


def test_a_node_that_returns_gets_its_own_models() -> None:
    table, models = nodes(4, 40), [need("a")]
    before = place(models, table, {"a": 2.0}, 0.0)
    gone = before.replicas["a"][0]
    left = [f"n{number}" for number in range(4) if f"n{number}" != gone]
    during = place(models, later(table, 20.0, left), {"a": 1.5}, 20.0, before)
    after = place(models, later(table, 60.0), {"a": 1.5}, 60.0, during)
    assert gone in after.replicas["a"]
    assert (gone in during.replicas["a"], after.moves) == (True, ()), "it keeps the models that it has"
    long = place(models, later(table, 20.0 + RETURN_SECONDS, left), {"a": 1.5}, 20.0 + RETURN_SECONDS, during)
    assert (long.away, gone in long.replicas["a"]) == ({}, False)


def test_a_node_that_is_away_loses_what_was_placed_on_others_by_hand() -> None:
    table, two = nodes(3, 40), [need("a", least=2), need("b", least=0)]
    before = place(two, table, {}, 0.0)
    gone, other = before.replicas["a"]
    table = later(table, 20.0, [name for name in ("n0", "n1", "n2") if name != gone])
    for hand, stays in (
        ({"on": (other,), "replicas": 1}, False),
        ({"on": (gone, other), "replicas": 2}, True),
        ({"replicas": 1}, False),
        ({"replicas": 3}, True),
    ):
        plan = place([need("a", **hand), need("b", least=0)], table, {}, 20.0, before)
        assert (gone in plan.replicas["a"]) is stays, hand


def test_a_model_over_high_takes_the_room_of_one_that_needs_it_least() -> None:
    table, models = nodes(4, 40), [need("a"), need("b", least=1)]
    before = place(models, table, {"a": 0.1, "b": 2.0}, 0.0)
    assert len(before.replicas["b"]) == 3
    before = FleetPlan(before.replicas)
    busy = place(models, later(table, 1.0), {"a": HIGH, "b": 0.3}, 1.0, before)
    assert busy.moves == (), "demand is not above HIGH"
    plan = place(models, later(table, 1.0), {"a": 1.8, "b": 0.3}, 1.0, before)
    assert actions(plan) == [("a", "load", "demand"), ("b", "unload", "room")]
    soon = place(models, later(table, 60.0), {"a": 1.8, "b": 0.3}, 60.0, plan)
    assert soon.moves == (), "a fleet of four makes one move at a time"
    after = place(models, later(table, 62.0), {"a": 1.8, "b": 0.3}, 62.0, soon)
    assert actions(after) == [("a", "load", "demand"), ("b", "unload", "room")]
    last = place(models, later(table, 130.0), {"a": 4.0, "b": 0.3}, 130.0, after)
    assert (last.moves, len(last.replicas["b"])) == ((), 1), "the minimum stays"


@pytest.mark.parametrize(
    ("others", "demand", "takes"),
    [
        (need("b"), 0.3, True),
        (need("b", least=2), 0.3, False),
        (need("b"), GOAL + 0.1, False),
        (need("b", replicas=2), 0.1, False),
        (need("b", on=("n1", "n2")), 0.1, False),
    ],
)
def test_a_replica_is_removed_only_if_its_model_can_do_without_it(
    others: ModelNeed, demand: float, takes: bool
) -> None:
    before = FleetPlan({"a": ("n0",), "b": ("n1", "n2")})
    plan = place([need("a"), others], later(nodes(3, 40), 1.0), {"a": 1.5, "b": demand}, 1.0, before)
    assert actions(plan) == ([("a", "load", "demand"), ("b", "unload", "room")] if takes else [])


def test_what_leaves_by_hand_makes_room_in_the_same_plan() -> None:
    before = FleetPlan({"b": ("n0",)})
    plan = place([need("a"), need("b", replicas=0)], later(nodes(1, 40), 1.0), {}, 1.0, before)
    assert actions(plan) == [("a", "load", "least"), ("b", "unload", "hand")]


def test_a_plan_removes_at_most_one_model_from_a_node() -> None:
    before = FleetPlan({"b": ("n0", "n1"), "c": ("n0", "n1")})
    plan = place([need(model) for model in "acbd"], later(nodes(2, 80), 1.0), {}, 1.0, before)
    assert {one.node for one in plan.moves if one.action == "unload"} == {"n0", "n1"}
    assert len(plan.moves) == 4


@pytest.mark.parametrize(("demand", "takes"), [(0.6, False), (0.02, False), (0.001, True)])
def test_a_model_with_requests_keeps_its_last_replica(demand: float, takes: bool) -> None:
    before = FleetPlan({"a": ("n0",), "b": ("n1",)})
    models = [need("a", least=0), need("b", least=0)]
    plan = place(models, later(nodes(2, 40), 1.0), {"a": 1.5, "b": demand}, 1.0, before)
    assert actions(plan) == ([("a", "load", "demand"), ("b", "unload", "room")] if takes else [])


def test_nothing_is_moved_back_within_a_minute() -> None:
    table, models = nodes(2, 40), [need("a"), need("b")]
    before = FleetPlan({"a": ("n0",), "b": ("n1",)}, moved={("b", "n0"): 10.0})
    assert place(models, later(table, 69.0), {"b": 2.0, "a": 0.0}, 69.0, before).moves == ()
    before = FleetPlan({"a": ("n0", "n1"), "b": ()}, moved={("a", "n0"): 10.0, ("a", "n1"): 10.0})
    assert place(models, later(table, 69.0), {"b": 2.0}, 69.0, before).moves == (), "new replicas stay for a minute"
    assert len(place(models, later(table, 71.0), {"b": 2.0}, 71.0, before).moves) == 2
    before = FleetPlan({"a": (), "b": ("n1",)}, moved={("a", "n0"): 10.0})
    assert place(models, later(nodes(1, 40), 69.0), {}, 69.0, before).replicas["a"] == (), (
        "removed replicas stay away for a minute"
    )
    assert place(models, later(nodes(1, 40), 71.0), {}, 71.0, before).replicas["a"] == ("n0",)


def test_demand_removes_at_most_one_model_an_hour_from_a_node() -> None:
    table, models = nodes(2, 80), [need("a"), need("b"), need("c", least=0)]
    before = FleetPlan({"a": ("n0",), "b": ("n0", "n1"), "c": ("n1",)}, moved={("d", "n1"): 1000.0})
    table = table_of([node("n0", 80), node("n1", 80)])
    busy = {"a": 3.0}
    assert place(models, later(table, 4599.0), busy, 4599.0, before).moves == ()
    assert len(place(models, later(table, 4601.0), busy, 4601.0, before).moves) == 2


def test_a_model_that_has_to_leave_no_longer_counts() -> None:
    before = FleetPlan({"a": (), "b": ("n0",)}, moved={("a", "n0"): 10.0})
    table = table_of([node("n0", 40, replicas=[replica("a"), replica("b")])])
    assert place([need("a", least=0), need("b")], table, {}, 0.0, before).replicas == {"a": (), "b": ("n0",)}


STEPS = st.lists(
    st.tuples(
        st.floats(1.0, 40.0),
        st.dictionaries(st.sampled_from("abcd"), st.floats(0.0, 4.0)),
        st.sets(st.integers(0, 5), max_size=2),
    ),
    min_size=1,
    max_size=8,
)
NEEDS = st.lists(
    st.builds(
        ModelNeed,
        st.sampled_from("abcd"),
        st.sampled_from([20 * GIB, 40 * GIB, 60 * GIB]),
        least=st.integers(0, 2),
        on=st.sampled_from([(), (), (), ("n0",), ("n1", "n2")]),
        replicas=st.sampled_from([None, None, None, 1]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda one: one.model,
)


@given(NEEDS, STEPS)
def test_over_many_steps_bytes_fit_and_moves_are_bounded(
    models: Sequence[ModelNeed], steps: Sequence[tuple[float, Mapping[str, float], set[int]]]
) -> None:
    now, plan, sizes = 0.0, FleetPlan({}), {one.model: one.bytes for one in models}
    by_hand = {one.model for one in models if one.on or one.replicas is not None}
    moved: dict[tuple[str, str], float] = {}
    for seconds, demand, missing in steps:
        now += seconds
        names = [f"n{number}" for number in range(6) if number not in missing]
        table = later(nodes(6), now, names)
        before, plan = plan, place(models, table, demand, now, plan)
        assert place(models, table, demand, now, before) == plan, "the function is pure"
        for name in names:
            assert sum(sizes[model] for model, on in plan.replicas.items() if name in on) <= 80 * GIB
        for model, on in plan.replicas.items():
            assert set(on) <= set(names) | plan.away.keys()
            for name in names:
                if (name in on) != (name in before.replicas.get(model, ())) and name not in before.away:
                    assert (model, name) in {one[:2] for one in plan.moves}, "replicas change only by moves"
        for move in plan.moves:
            if move.why in ("least", "demand"):
                assert now - moved.get(move[:2], -HOLD_SECONDS) >= HOLD_SECONDS
            moved[move[:2]] = now
        for one in models:
            enough = one.replicas if one.replicas is not None else one.least
            assert len(plan.replicas[one.model]) >= enough or one.model in plan.unplaced or one.on
        assert {one.model for one in plan.moves if one.why == "hand"} <= by_hand


def test_demand_is_running_and_waiting_requests_by_a_replicas_capacity() -> None:
    def one(model: str, **fields: object) -> ReplicaReport:
        return replica(model, **fields)

    table = table_of(
        [
            node("n0", replicas=[one("a", running=12, waiting=4), one("b", running=8, ready=2, capacity=32)]),
            node("n1", replicas=[one("a", running=8)]),
        ]
    )
    assert demand_of(table, 1.0) == {"a": 1.5, "b": 0.5}
    assert demand_of(table, LEASE_SECONDS + 1) == {}


def test_a_mean_follows_slowly() -> None:
    mean = DemandMean()
    mean.take({"a": 1.0}, 0.0)
    mean.take({"a": 2.0, "b": 1.0}, 1.0)
    assert mean.by_model["a"] == pytest.approx(1.03, abs=0.01)
    mean.take({}, 1.0 + 10 * SMOOTHING_SECONDS)
    assert mean.by_model["a"] < 0.001


@given(st.lists(st.sampled_from(["write a", "write b", "read a", "read b", "restore"]), max_size=40))
def test_no_two_placers_own_one_epoch(steps: list[str]) -> None:
    row, known, stopped = DesiredReplicas(0, {}), {"a": 0, "b": 0}, set[str]()
    owners: dict[int, str] = {}
    node = 0
    for step in steps:
        verb, _, who = step.partition(" ")
        if verb == "read":
            known[who] = row.epoch
            stopped.discard(who)
        elif verb == "restore":  # an older state of the database is restored
            assert not may_follow(node + 1, DesiredReplicas(node, {}))
        elif who not in stopped:
            written = successor(row, known[who], {"m": (who,)})
            if written is None:
                stopped.add(who)
                continue
            assert written.epoch not in owners
            owners[written.epoch], known[who], row = who, written.epoch, written
        if may_follow(node, row):
            node = row.epoch
    assert row.epoch == len(owners)
