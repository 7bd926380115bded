"""Nodes whose answers begin late: when they are left out, and how they return."""

import pytest

from fleet.choose import FleetTarget, choose
from fleet.lateness import LATE, OF, OUT_SECONDS, Lateness, answered, sent
from fleet.table import ReportTable
from tests.unit.fleet.made import replica, report, table_of

CHAT = FleetTarget("chat", draw=1 << 40)


def after(*outcomes: bool, may_leave: bool = True) -> Lateness:
    """Return the state after one answer a second. True is a late one."""
    state = Lateness()
    for second, is_late in enumerate(outcomes):
        state = answered(state, second, second, is_late=is_late, may_leave=may_leave)
    return state


@pytest.mark.parametrize(
    ("outcomes", "is_out"),
    [
        ([True] * (LATE - 1), False),
        ([True] * LATE, True),
        ([True] + [False] * (OF - LATE) + [True] * (LATE - 1), True),
        ([True] + [False] * (OF - LATE + 1) + [True] * (LATE - 1), False),
    ],
    ids=["two", "three", "three of ten", "three of eleven"],
)
def test_three_late_answers_of_the_last_ten_take_a_node_out(outcomes: list[bool], is_out: bool) -> None:
    assert after(*outcomes).is_out(len(outcomes)) == is_out
    assert not after(*outcomes, may_leave=False).is_out(len(outcomes))


def test_one_probe_after_ten_seconds_decides() -> None:
    out = answered(after(True, True), 0, 100, is_late=True, may_leave=True)
    assert out.is_out(100 + OUT_SECONDS - 0.1)
    assert not out.is_out(100 + OUT_SECONDS)
    assert sent(out, 105) == out, "a request during the ten seconds is no probe"
    probed = sent(out, 110)
    assert probed.is_out(110)
    assert answered(probed, 99, 111, is_late=False, may_leave=True) == probed, "its request was sent before"
    assert answered(probed, 110, 111, is_late=False, may_leave=True) == Lateness()
    late = answered(probed, 110, 115, is_late=True, may_leave=True)
    assert (late.is_out(124.9), late.is_out(125)) == (True, False)
    assert not probed.is_out(120), "the probe had no answer, so another one is sent"


# --- in the table ----------------------------------------------------------------------------------------------------
def tries(table: ReportTable, now: float) -> list[str]:
    return sorted(choose(CHAT, None, table, now))


def renew(table: ReportTable, seq: int, now: float) -> None:
    for node in ("a", "b"):
        assert table.add(report(node, [replica()], seq=seq, uptime=now), now) == "taken"


def test_a_late_node_is_no_candidate_until_its_probe_is_answered() -> None:
    table = table_of([report(node, [replica()]) for node in ("a", "b")])
    assert tries(table, 0.0) == ["a", "b"]
    changes = [table.count_answer("a", 0.0, 1.0, is_late=True) for _ in range(LATE)]
    assert changes == [False] * (LATE - 1) + [True]
    renew(table, 2, 2.0)
    assert tries(table, 2.0) == ["b"]
    assert (table.is_out("a", 2.0), tries(table.copy(), 2.0)) == (True, ["b"])
    assert not [table.count_answer("b", 0.0, 2.0, is_late=True) for _ in range(OF)][-1], (
        "at least half of the nodes stay"
    )
    renew(table, 3, 1.0 + OUT_SECONDS)
    assert tries(table, 1.0 + OUT_SECONDS) == ["a", "b"]
    table.count_sent("a", "chat", 1.0 + OUT_SECONDS)
    assert tries(table, 1.0 + OUT_SECONDS) == ["b"], "one probe"
    assert table.count_answer("a", 1.0 + OUT_SECONDS, 2.0 + OUT_SECONDS, is_late=False)
    assert tries(table, 2.0 + OUT_SECONDS) == ["a", "b"]


def test_a_node_that_returns_starts_without_lateness() -> None:
    table = table_of([report(node, [replica()]) for node in ("a", "b")])
    for _ in range(LATE):
        table.count_answer("a", 0.0, 1.0, is_late=True)
    table.remove("a")
    assert not table.has_late
    assert not table.count_answer("a", 0.0, 1.0, is_late=True), "the node is unknown"
    renew(table, 2, 2.0)
    assert tries(table, 2.0) == ["a", "b"]
