"""The choice of nodes for a request: the rules of `fleet.choose`, and properties."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.choose import FleetTarget, choose, explain, prefix_key
from fleet.index import NodeEntry, NodeGroup, position_of
from fleet.reports import NodeReport
from fleet.table import REPORT_SECONDS, ReportTable
from tests.unit.fleet.made import digest_of, replica, report, table_of

CHAT = FleetTarget("chat")
MIX = 0x9E3779B97F4A7C15
"""A factor that spreads small numbers over 64 bits."""


def drawn(target: FleetTarget, count: int = 200) -> list[FleetTarget]:
    return [target._replace(draw=number * MIX % 2**64) for number in range(count)]


def firsts(table: ReportTable, target: FleetTarget, prefix: int | None = None, now: float = 0.0) -> Counter[str]:
    return Counter(choose(one, prefix, table, now)[0] for one in drawn(target))


def test_a_request_goes_to_nodes_that_serve_its_model() -> None:
    table = table_of([report("a", [replica()]), report("b", [replica()]), report("c", [replica("other")])])
    for target in drawn(CHAT):
        assert set(choose(target, None, table, 0.0)) == {"a", "b"}


def test_without_any_node_there_is_no_try() -> None:
    assert explain(CHAT, None, ReportTable(), 0.0).reason == "none"
    assert list(choose(CHAT, None, ReportTable(), 0.0)) == []


@pytest.mark.parametrize(
    ("replicas", "tries", "reason"),
    [
        ({"a": "asleep", "b": "loading", "c": "unloading"}, ["b", "a"], "loading"),
        ({"a": "asleep", "b": "failed"}, ["a"], "asleep"),
    ],
)
def test_without_a_ready_replica_a_loading_one_comes_before_a_sleeping_one(
    replicas: dict[str, str], tries: list[str], reason: str
) -> None:
    table = table_of(report(name, [replica(state=state, ready=0)]) for name, state in replicas.items())
    choice = explain(CHAT, None, table, 0.0)
    assert (list(choice.tries), choice.reason) == (tries, reason)


def test_a_model_without_replicas_has_the_same_home_for_all_fronts() -> None:
    table = table_of(report(f"n{number}", []) for number in range(20))
    choices = {explain(one, None, table, 0.0).tries for one in drawn(CHAT)}
    assert len(choices) == 1
    assert len({explain(FleetTarget(f"m{n}"), None, table, 0.0).tries[0] for n in range(200)}) > 10


def test_a_slow_node_gets_only_requests_that_it_ends_sooner() -> None:
    """A node ten times slower than two others got a third of the requests, and now gets a few to be measured again."""
    fast, slow = {"token_seconds": 0.02}, {"token_seconds": 0.2, "request_seconds": 32.0}
    table = table_of([report("a", [replica(**fast)]), report("b", [replica(**fast)]), report("c", [replica(**slow)])])
    for digest, prefix in ((None, None), (None, 7), (digest_of(1), None)):
        assert firsts(table, FleetTarget("chat", digest=digest), prefix)["c"] <= 6
    busy = {**fast, "running": 16, "waiting": 200, "start_seconds": 40.0}
    table = table_of([report("a", [replica(**busy)]), report("b", [replica(**busy)]), report("c", [replica(**slow)])])
    assert firsts(table, CHAT)["c"] > 150, "it starts at once, 40 s before the others"
    slow["running"] = 16
    table = table_of([report(name, [replica(**slow)]) for name in "abc"])
    assert len(firsts(table, CHAT)) == 3, "none is slower than the others"


def test_a_silent_or_draining_node_gets_no_requests() -> None:
    table = table_of(report(name, [replica()]) for name in "abc")
    table.add(report("a", [replica()], seq=2, uptime=4.0), 4.0)
    table.add(report("b", [replica()], seq=2, uptime=4.0, draining=True), 4.0)
    assert list(choose(CHAT, None, table, 4.0)) == ["a"]
    assert list(choose(CHAT, None, table, 4.0 + REPORT_SECONDS + 0.1)) == []
    table.add(report("b", [replica()], seq=3, uptime=5.0), 5.0)
    assert sorted(choose(CHAT, None, table, 5.0)) == ["a", "b"]


def test_a_fresh_node_is_found_among_many_silent_ones() -> None:
    table = table_of(report(f"n{number}", [replica()]) for number in range(100))
    table.add(report("n7", [replica()], seq=2, uptime=9.0), 9.0)
    for target in drawn(CHAT):
        assert list(choose(target, None, table, 9.0)) == ["n7"]


def test_another_revision_is_another_model() -> None:
    table = table_of([report("a", [replica(revision="1")]), report("b", [replica(revision="2")])])
    for target in drawn(CHAT._replace(revision="2")):
        assert list(choose(target, None, table, 0.0)) == ["b"]
    assert explain(CHAT._replace(revision="3"), None, table, 0.0).reason == "home"


def test_an_adapter_stays_where_it_has_a_place() -> None:
    digest = digest_of(1)
    table = table_of(
        report(f"n{number}", [replica()], placed=(digest,) if number in (3, 11) else ()) for number in range(50)
    )
    assert set(firsts(table, CHAT._replace(digest=digest))) == {"n3", "n11"}


def test_an_adapter_without_a_place_has_one_home_for_every_front() -> None:
    table = table_of(report(f"n{number}", [replica()]) for number in range(50))
    homes = {number: firsts(table, CHAT._replace(digest=digest_of(number))) for number in range(40)}
    assert all(len(home) == 1 for home in homes.values())
    assert len({next(iter(home)) for home in homes.values()}) > 20


def test_an_adapter_gets_one_more_place_where_its_nodes_are_busy() -> None:
    digest = digest_of(1)
    table = table_of(
        report(f"n{n}", [replica(running=16 if n < 2 else 4)], placed=(digest,) if n < 2 else ()) for n in range(20)
    )
    counts = firsts(table, CHAT._replace(digest=digest))
    assert counts["n0"] + counts["n1"] < 20, "of 200, only if both other candidates are these"


def test_a_prompt_has_a_home_and_leaves_it_if_the_home_is_busy() -> None:
    reports = [report(f"n{number}", [replica(running=4)]) for number in range(50)]
    prefix = prefix_key("team", None, b"You are helpful")
    home = firsts(table_of(reports), CHAT, prefix)
    assert len(home) == 1
    name = next(iter(home))
    busy = [report(name, [replica(running=14)]) if one.node == name else one for one in reports]
    assert name not in firsts(table_of(busy), CHAT, prefix)


@pytest.mark.parametrize(("digest", "reason"), [(None, "prompt"), (digest_of(1), "adapter")])
def test_while_a_home_is_silent_one_other_node_takes_its_place(digest: str | None, reason: str) -> None:
    names, prefix = [f"n{number}" for number in range(20)], prefix_key("team", None, b"You are helpful")
    target = CHAT._replace(digest=digest)
    table = table_of(report(name, [replica()]) for name in names)
    choice = explain(target, prefix, table, 0.0)
    assert choice.reason == reason
    home = choice.tries[0]
    for name in names:
        if name != home:
            table.add(report(name, [replica()], seq=2, uptime=9.0), 9.0)
    assert len(firsts(table, target, prefix, 9.0)) == 1
    choice = explain(target, prefix, table, 9.0)
    assert (choice.reason, choice.tries[0] != home) == (reason, True)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_homes_are_spread_evenly_over_all_nodes(count: int) -> None:
    """However unevenly the hashes of their names are spaced."""
    group = NodeGroup()
    for number in range(count):
        group.add(NodeEntry(f"node-{number}"))
    homes = Counter(group.home(position_of(f"key {number}")) for number in range(400 * count))
    assert len(homes) == count
    assert all(300 <= keys <= 500 for keys in homes.values()), homes


def test_a_node_that_leaves_moves_few_keys_of_others() -> None:
    group, keys = NodeGroup(), [position_of(f"key {number}") for number in range(4000)]
    nodes = [NodeEntry(f"node-{number}") for number in range(40)]
    for node in nodes:
        group.add(node)
    before = [group.nodes[group.home(key)] for key in keys]
    group.remove(nodes[7])
    after = [group.nodes[group.home(key)] for key in keys]
    moved = sum(old is not new for old, new in zip(before, after, strict=True) if old is not nodes[7])
    assert 0 < moved < len(keys) / 10


def test_requests_without_a_home_are_spread_over_all() -> None:
    table = table_of(report(f"n{number}", [replica(running=4)]) for number in range(10))
    counts = firsts(table, CHAT)
    assert len(counts) == 10
    assert max(counts.values()) <= 45  # of 200 requests


def test_requests_sent_since_a_report_count() -> None:
    table = table_of(report(f"n{number}", [replica(running=8)]) for number in range(8))
    sent: Counter[str] = Counter()
    for target in drawn(CHAT, 64):
        name = choose(target, None, table, 0.5)[0]
        table.count_sent(name, "chat", 0.5)
        sent[name] += 1
    assert all(count <= 10 for count in sent.values()), "8 of 16 places are used, so no request waits for long"
    table.add(report("n0", [replica(running=16)], seq=2, uptime=1.0), 1.0)
    table.count_sent("nowhere", "chat", 1.0)
    table.count_sent("n0", "other", 1.0)
    states = {name: state for one in drawn(CHAT) for name, state in explain(one, None, table, 1.0).candidates}
    if "n0" in states:
        assert states["n0"].work == 16


def test_requests_sent_after_a_report_was_made_are_added_to_it() -> None:
    table = table_of([report("a", [replica(running=1)])])
    table.count_sent("a", "chat", 2.0)
    table.add(report("a", [replica(running=1)], seq=2, uptime=1.0), 2.5)  # it arrived late
    (candidate,) = explain(CHAT, None, table, 2.5).candidates
    assert candidate[1].work == 2
    table.add(report("a", [replica(running=2)], seq=3, uptime=2.4), 2.6)
    (candidate,) = explain(CHAT, None, table, 2.6).candidates
    assert candidate[1].work == 2


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeReport]:
    count = draw(st.integers(1, 30))
    digests = [digest_of(number) for number in range(4)]
    states = st.sampled_from(["ready", "ready", "ready", "loading", "asleep", "failed"])
    models = st.dictionaries(st.sampled_from(["chat", "other"]), states, min_size=1)
    return [
        report(
            f"n{number}",
            [
                replica(model, state, ready=int(state == "ready"), running=draw(st.integers(0, 40)),
                        start_seconds=draw(st.sampled_from([0.0, 0.5, 9.0])))
                for model, state in draw(models).items()
            ],
            placed=tuple(draw(st.sets(st.sampled_from(digests)))),
            draining=draw(st.sampled_from([False, False, False, True])),
        )
        for number in range(count)
    ]  # fmt: skip


@given(fleets(), st.integers(0, 2**64 - 1), st.none() | st.integers(0, 2**64 - 1), st.none() | st.integers(0, 4))
def test_tries_are_two_different_nodes_that_can_answer(
    reports: list[NodeReport], draw: int, prefix: int | None, adapter: int | None
) -> None:
    table = table_of(reports)
    target = FleetTarget("chat", "", None if adapter is None else digest_of(adapter), draw)
    tries = choose(target, prefix, table, 1.0)
    assert list(tries) == list(choose(target, prefix, table, 1.0)), "the function is pure"
    up = {one.node: one for one in reports if not one.draining}
    ready = {name for name, one in up.items() if any(r.model == "chat" and r.state == "ready" for r in one.replicas)}
    assert len(set(tries)) == len(tries) <= 2
    assert set(tries) <= (ready or up.keys())
    assert len(tries) >= min(1, len(up))


@given(st.lists(fleets(), min_size=1, max_size=4), st.data())
def test_the_index_follows_only_the_newest_reports(rounds: list[list[NodeReport]], data: st.DataObject) -> None:
    """Whatever reports and nodes there were before."""
    table = ReportTable()
    for seq, reports in enumerate(rounds):
        for one in reports:
            if data.draw(st.booleans()):
                table.count_sent(one.node, "chat", float(seq) - 0.5)
            table.add(msgspec.structs.replace(one, seq=seq, uptime=float(seq)), float(seq))
        if data.draw(st.booleans()):
            table.remove(reports[0].node)
    now = float(len(rounds))
    anew = ReportTable()
    for stored in table:
        anew.add(stored.report, stored.at)
    for number in range(20):
        target = FleetTarget("chat", "", digest_of(number % 5), number * MIX % 2**64)
        left, right = explain(target, number, table, now), explain(target, number, anew, now)
        assert left == right
    for model in ("chat", "other"):
        group, other = table.index.serving.get(model), anew.index.serving.get(model)
        assert (group and (group.work, group.positions)) == (other and (other.work, other.positions))


def test_a_new_node_moves_only_few_keys_besides_its_own() -> None:
    reports = [report(f"n{number}", [replica()]) for number in range(40)]
    rng = random.Random(3)
    keys = [rng.getrandbits(64) for _ in range(300)]
    without, table = table_of(reports), table_of([*reports, report("new", [replica()])])
    before = {key: choose(CHAT, key, without, 0.0)[0] for key in keys}
    after = {key: choose(CHAT, key, table, 0.0)[0] for key in keys}
    moved = [after[key] for key in keys if after[key] != before[key]]
    assert "new" in moved
    assert len(moved) - moved.count("new") < len(keys) / 20
