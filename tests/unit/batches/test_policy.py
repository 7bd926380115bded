"""Which lines run next: the rules of `batches.work.policy`, each by itself and as properties."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches.records import Forecast
from batches.work.policy import (
    RESERVED,
    BatchWork,
    Level,
    LineGroup,
    RoomUse,
    TeamShares,
    Traffic,
    choose,
    level_of,
    look_ahead,
    pace,
    room_for,
    slack,
)
from tests.unit.batches.conftest import BATCH

AHEAD = 8
"""Lines ahead of 32 places."""


def room(limit: int, running: int = 0, **options: bool) -> RoomUse:
    return RoomUse(dict.fromkeys(Level, limit), running, **options)


def work(id_: str, *groups: LineGroup, team: str = "a", level: Level = Level.IDLE, **options: float) -> BatchWork:
    values = {"weight": 1.0, "deadline": 100.0, "created": 0.0, "priority": 1, **options}
    return BatchWork(id_, team, level=level, groups=groups, **values)


def taken(works: list[BatchWork], rooms: dict[str, RoomUse]) -> list[tuple[str, str, int]]:
    return [(claim.batch, claim.name, claim.count) for claim in choose(works, rooms)]


def test_a_room_is_filled_but_not_exceeded() -> None:
    assert taken([work("b", LineGroup("m", "m", 50))], {"m": room(8, 3)}) == [("b", "m", 5)]
    assert taken([work("b", LineGroup("m", "m", 50))], {"m": room(8, 9)}) == []
    assert taken([work("b", LineGroup("m", "m", 2))], {"m": room(8)}) == [("b", "m", 2)]


def test_adapters_in_places_come_first_then_the_most_lines() -> None:
    groups = [LineGroup("m:few", "m", 2), LineGroup("m:many", "m", 5), LineGroup("m:here", "m", 1, is_placed=True)]
    assert taken([work("b", *groups)], {"m": room(7)}) == [("b", "m:here", 1), ("b", "m:many", 5), ("b", "m:few", 1)]


def test_teams_share_by_weight() -> None:
    works = [
        work("b", LineGroup("m", "m", 50), team="a"),
        work("c", LineGroup("m", "m", 50), team="b", weight=3.0),
    ]
    assert {batch: count for batch, _, count in taken(works, {"m": room(8)})} == {"b": 2, "c": 6}
    shares = TeamShares()
    shares.join({"m": ["a", "b"]})
    shares.charge("m", "b", 6.0, 3.0)
    assert [(one.batch, one.count) for one in choose(works, {"m": room(8, 6)}, shares)] == [("b", 2)]


def test_within_a_team_priority_then_deadline_then_age() -> None:
    group = LineGroup("m", "m", 1)
    works = [
        work("old", group, created=1.0),
        work("low", group, priority=0),
        work("high", group, priority=2, created=9.0),
        work("tight", group, deadline=30.0, created=5.0),
    ]
    assert [batch for batch, _, _ in taken(works, {"m": room(9)})] == ["high", "tight", "old", "low"]


def test_a_late_batch_runs_before_all_others() -> None:
    group = LineGroup("m", "m", 5)
    rooms = {"m": RoomUse({Level.IDLE: 0, Level.SOON: 0, Level.PRESSED: 4, Level.LATE: 8})}
    works = [work("idle", group), work("late", group, level=Level.LATE, team="b")]
    assert taken(works, rooms) == [("late", "m", 5)]
    assert taken([work("pressed", group, level=Level.PRESSED)], rooms) == [("pressed", "m", 4)]
    works.append(work("later", group, level=Level.LATE, deadline=101.0, priority=2))
    assert taken(works, rooms) == [("late", "m", 5), ("later", "m", 3)], "of any team"


def test_only_lines_of_late_and_pressed_batches_have_the_interactive_class() -> None:
    rooms = {"m": RoomUse(dict.fromkeys(Level, 8), raised=1, half=4)}
    for level, raised in ((Level.LATE, 8), (Level.PRESSED, 3), (Level.SOON, 0), (Level.IDLE, 0)):
        claims = choose([work("b", LineGroup("m", "m", 50), level=level)], rooms)
        assert sum(claim.count for claim in claims) == 8
        assert sum(claim.count for claim in claims if claim.is_raised) == raised


def test_suspects_run_one_at_a_time() -> None:
    works = [work("b", LineGroup("m", "m", 1, suspects=3)), work("c", LineGroup("m", "m", 0, suspects=3), team="b")]
    claims = choose(works, {"m": room(9)})
    assert sorted((claim.batch, claim.count, claim.is_suspect) for claim in claims) == [
        ("b", 1, False),
        ("c", 1, True),
    ]
    assert choose([works[1]], {"m": room(9, 1, has_suspect=True)}) == []


def test_a_few_lines_wait_for_a_turn() -> None:
    assert [look_ahead(Traffic(capacity)) for capacity in (1, 8, 32, 1024)] == [2, 2, AHEAD, 16]
    for busy in (Traffic(32, is_quiet=False), Traffic(32, 32, is_quiet=False, can_fill=True), Traffic(4, most=4)):
        assert look_ahead(busy) == 0, "the next line begins at once"


@pytest.mark.parametrize(
    ("traffic", "level", "expected"),
    [
        (Traffic(32), Level.IDLE, 32 + AHEAD),
        (Traffic(32, others=4), Level.IDLE, 28 + AHEAD),
        (Traffic(32, others=40), Level.IDLE, AHEAD),
        (Traffic(32, is_quiet=False), Level.IDLE, 32 - RESERVED),
        (Traffic(32, others=30, is_quiet=False), Level.IDLE, 0),
        (Traffic(32, others=30, is_quiet=False), Level.SOON, 0),
        (Traffic(32, others=30, is_quiet=False), Level.PRESSED, 16),
        (Traffic(32, others=30, is_quiet=False), Level.LATE, 32),
        (Traffic(4, is_quiet=False), Level.IDLE, 0),
        (Traffic(32, others=30, is_quiet=False, can_fill=True), Level.IDLE, 2 + AHEAD),
        (Traffic(32, others=40, is_quiet=False, can_fill=True), Level.IDLE, 0),
        (Traffic(32, others=30, is_quiet=False, can_fill=True), Level.PRESSED, 16),
        (Traffic(32, others=10, is_quiet=False, can_fill=True), Level.PRESSED, 22 + AHEAD),
        (Traffic(32, is_resident=False), Level.IDLE, 32 + AHEAD),
        (Traffic(32, is_resident=False, may_load=False), Level.IDLE, 0),
        (Traffic(32, is_resident=False, may_load=False), Level.SOON, 32 + AHEAD),
        (Traffic(32, is_resident=False, is_held_off=True), Level.PRESSED, 0),
        (Traffic(32, is_resident=False, is_held_off=True), Level.LATE, 32 + AHEAD),
    ],
)
def test_the_room_of_a_model(traffic: Traffic, level: Level, expected: int) -> None:
    assert room_for(traffic, level) == expected


def test_slack_is_the_share_of_the_window_beyond_the_work() -> None:
    batch = replace(BATCH, window=1000, created=0.0)
    assert slack(batch, 500.0) == 0.5
    batch = replace(batch, forecast=Forecast(400.0, 600.0, 700.0, 900.0))
    assert slack(batch, 500.0) == pytest.approx(0.1), "the late end counts"
    assert slack(batch, 950.0) == pytest.approx(0.05), "an end that is overdue counts as now"
    assert [level_of(part) for part in (0.3, 0.2, 0.07, 0.01, -1.0)] == [
        Level.IDLE,
        Level.SOON,
        Level.PRESSED,
        Level.LATE,
        Level.LATE,
    ]


GROUPS = st.lists(
    st.builds(
        LineGroup,
        st.sampled_from(["m:a", "m:b", "n:c", "n"]),
        st.just(""),
        st.integers(0, 20),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda group: group.name,
)
WORKS = st.lists(
    st.builds(
        BatchWork,
        st.uuids().map(str),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([0.5, 1.0, 4.0]),
        st.sampled_from(Level),
        st.floats(-1, 1),
        st.floats(0, 1e6),
        st.integers(0, 2),
        GROUPS.map(lambda groups: [replace(group, room=group.name[0]) for group in groups]),
    ),
    max_size=6,
)
ROOMS = st.fixed_dictionaries({key: st.builds(room, st.integers(0, 30), st.integers(0, 10)) for key in "mn"})


@given(WORKS, ROOMS)
def test_rooms_hold_and_no_place_stays_free_while_lines_wait(works: list[BatchWork], rooms: dict[str, RoomUse]) -> None:
    claims = choose(works, rooms)
    taken_in = Counter[str]()
    groups = {(one.id, group.name): group for one in works for group in one.groups}
    for claim in claims:
        group = groups[claim.batch, claim.name]
        assert 0 < claim.count <= (group.suspects if claim.is_suspect else group.count)
        taken_in[claim.room] += claim.count
    suspects = Counter(claim.room for claim in claims for _ in range(claim.count) if claim.is_suspect)
    assert all(count == 1 for count in suspects.values())
    for key, one in rooms.items():
        free = max(0, one.limits[Level.IDLE] - one.running)
        waiting = sum(group.count for group in groups.values() if group.room == key)
        assert taken_in[key] <= free
        assert taken_in[key] >= min(free, waiting)


def test_lines_begin_one_by_one_while_interactive_requests_use_a_model() -> None:
    assert pace([Traffic(32), Traffic(8)]) == 0.0
    assert pace([Traffic(32), Traffic(8, is_quiet=False)]) > 0.0
