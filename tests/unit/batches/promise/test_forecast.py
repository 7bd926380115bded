"""Forecasts of batches' ends: measured rates, and how batches share them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches.work.forecast import (
    ANSWER_WORK,
    BYTE_WORK,
    LINE_BYTES,
    LONGEST,
    WINDOW_SECONDS,
    BatchNeed,
    LineWork,
    RateMeter,
    RoomRate,
    RoomWork,
    forecast,
)
from batches.work.policy import Level
from models.messages import Usage

CHAT = "/v1/chat/completions"
EXACT = 0.0


def need(
    id_: str, work: float, team: str = "a", weight: float = 1.0, level: Level = Level.IDLE, deadline: float = 0.0
) -> BatchNeed:
    return BatchNeed(id_, team, weight, level, 1, deadline, {"m": RoomWork(work, EXACT)})


def likely(needs: list[BatchNeed], rate: float = 10.0) -> dict[str, float]:
    return {id_: found.likely for id_, found in forecast(needs, {"m": RoomRate(rate, EXACT)}, 0.0).items()}


def test_a_batch_alone_gets_the_whole_rate() -> None:
    assert likely([need("b", 500.0)]) == {"b": 50.0}


def test_batches_of_a_team_run_one_after_the_other() -> None:
    assert likely([need("b", 500.0, deadline=2.0), need("a", 100.0, deadline=1.0)]) == {"a": 10.0, "b": 60.0}


def test_teams_share_by_weight_until_one_has_ended() -> None:
    needs = [need("a", 300.0, "a", weight=3.0), need("b", 300.0, "b")]
    assert likely(needs) == {"a": 40.0, "b": 60.0}


def test_a_higher_level_runs_first() -> None:
    assert likely([need("idle", 100.0), need("late", 300.0, "b", level=Level.LATE)]) == {"late": 30.0, "idle": 40.0}


def test_late_batches_run_in_the_order_of_their_windows() -> None:
    needs = [need("b", 300.0, "b", level=Level.LATE, deadline=2.0), need("a", 100.0, level=Level.LATE, deadline=1.0)]
    assert likely(needs) == {"a": 10.0, "b": 40.0}


def test_a_batch_ends_with_its_last_model_and_has_no_forecast_if_a_rate_is_unknown() -> None:
    rooms = {"m": RoomWork(100.0, EXACT), "n": RoomWork(100.0, EXACT, delay=5.0)}
    both = BatchNeed("b", "a", 1.0, Level.IDLE, 1, 0.0, rooms)
    rates = {"m": RoomRate(10.0, EXACT), "n": RoomRate(5.0, EXACT)}
    assert forecast([both], rates, 7.0)["b"].likely == 7.0 + 5.0 + 20.0
    assert forecast([both, need("c", 50.0)], {"m": rates["m"]}, 0.0).keys() == {"c"}


def test_the_last_lines_of_a_batch_take_longer_than_their_work() -> None:
    lines = LineWork()
    assert lines.tail("b", CHAT, "m") == 0.0
    for seconds in (2.0, 8.0) * 200:
        lines.learn("b", CHAT, "m", 100, Usage(prompt_tokens=50), seconds)
    assert lines.tail("b", CHAT, "m") == pytest.approx(5.0 / 2 + 2 * 3.0, rel=0.05)
    both = [BatchNeed(id_, "a", 1.0, Level.IDLE, 1, 0.0, {"m": RoomWork(100.0, EXACT, tail=6.0)}) for id_ in "ab"]
    ends = {id_: one.likely for id_, one in forecast(both, {"m": RoomRate(10.0, EXACT)}, 0.0).items()}
    assert ends == {"a": 16.0, "b": 26.0}, "the next batch begins before the last lines end"


def test_the_range_of_a_forecast_is_wider_the_less_is_known() -> None:
    needs = [BatchNeed("b", "a", 1.0, Level.IDLE, 1, 0.0, {"m": RoomWork(100.0, 0.3)})]
    found = forecast(needs, {"m": RoomRate(10.0, 0.4)}, 1.0)["b"]
    assert (found.early, found.likely, found.late) == pytest.approx((1 + 10 / 1.5, 11.0, 16.0))
    assert likely([need("b", 1e9)], rate=0.0)["b"] == LONGEST


NEEDS = st.lists(
    st.builds(
        need, st.uuids().map(str), st.floats(1, 1e6), st.sampled_from("abc"), st.just(2.0), st.sampled_from(Level),
        st.floats(0, 1),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(NEEDS)
def test_all_work_is_done_by_the_last_end_and_none_before_its_own(needs: list[BatchNeed]) -> None:
    ends = likely(needs)
    assert max(ends.values()) == pytest.approx(sum(one.rooms["m"].work for one in needs) / 10.0)
    for one in needs:
        assert ends[one.id] >= one.rooms["m"].work / 10.0 * (1 - 1e-9)


def test_a_rate_is_measured_while_lines_wait() -> None:
    meter = RateMeter()
    meter.add(1e9)  # while no line waits
    meter.advance(0.0, is_full=True)
    meter.advance(100.0, is_full=True)
    assert meter.rate() is None, "before the end of the first line"
    meter = RateMeter()
    meter.advance(0.0, is_full=True)
    now = 0.0
    for _ in range(100):
        for _ in range(10):
            meter.add(5.0)
        now += WINDOW_SECONDS / 2
        meter.advance(now, is_full=True)
    found = meter.rate()
    assert found is not None
    assert found.per_second == pytest.approx(50.0 * 2 / WINDOW_SECONDS)
    assert found.spread == 0.05
    meter.advance(now, is_full=False)
    meter.advance(now + 1000.0, is_full=True)
    assert meter.rate() == found, "time without waiting lines does not count"
    for second in range(1, 200):
        meter.advance(now + 1000.0 + second, is_full=True)
    lower = meter.rate()
    assert lower is not None
    assert lower.per_second < found.per_second / 2, "other requests use the model"
    assert lower.spread > 0.5


def test_neither_the_first_nor_the_last_lines_lower_a_rate() -> None:
    meter = RateMeter()
    meter.advance(0.0, is_full=True)
    meter.advance(WINDOW_SECONDS / 2, is_full=True)
    meter.add(10.0)
    meter.advance(WINDOW_SECONDS, is_full=False)
    first = meter.rate()
    assert first is not None
    assert first.per_second == pytest.approx(20.0 / WINDOW_SECONDS), "time before the first end does not count"
    meter.add(1e9)
    meter.advance(100.0, is_full=True)
    assert meter.rate() == first, "the last lines do not count"


def test_measurements_from_before_a_batch_count_little() -> None:
    meter, now = RateMeter(), 0.0
    meter.advance(now, is_full=True)
    for batch, rate in (("a", 100), ("b", 200)):
        meter.add(1.0, batch)
        for _ in range(10):
            for _ in range(rate // 2):
                meter.add(1.0, batch)
            now += 0.5
            meter.advance(now, is_full=True)
        found = meter.rate()
        assert found is not None
        assert found.per_second == pytest.approx(rate, rel=0.05)


def test_the_work_of_lines_is_estimated_from_similar_lines() -> None:
    lines = LineWork()
    assert lines.of("b", CHAT, "m", 10, 1000) == (200.0 + 10 * ANSWER_WORK, 1.0)
    assert lines.of("b", "/v1/embeddings", "m", 10, 1000) == (200.0, 1.0)
    assert lines.one("b", CHAT, "m") == LINE_BYTES * BYTE_WORK + ANSWER_WORK
    assert lines.one("b", "/v1/embeddings", "m") == LINE_BYTES * BYTE_WORK
    for _ in range(100):
        lines.learn("b", CHAT, "m", 100, Usage(prompt_tokens=50, completion_tokens=25))
    work, spread = lines.of("b", CHAT, "m", 10, 1000)
    assert (work, spread) == (pytest.approx(500.0 + 1000.0), pytest.approx(0.15))
    assert lines.one("b", CHAT, "m") == pytest.approx(150.0)
    assert lines.of("c", CHAT, "m", 10, 1000) == (pytest.approx(1500.0), pytest.approx(0.35))
    assert lines.of("c", CHAT, "n", 10, 1000) == (pytest.approx(1500.0), pytest.approx(0.55))
    for _ in range(100):
        lines.learn("c", CHAT, "m", 100, Usage(prompt_tokens=50, completion_tokens=5))
    assert lines.of("c", CHAT, "m", 10, 1000)[0] == pytest.approx(700.0), "by this batch's own answers"
    assert lines.of("b", CHAT, "m", 10, 1000)[0] == pytest.approx(1500.0)
