"""The transitions of a breaker, row by row on a scripted clock, and its invariants."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.providers.breaker import PROBE_WAIT, Breaker, CallOutcome, CallRefused, Permit, Phase, admit, begun, ended

OK, BAD, NEITHER = CallOutcome.SUCCESS, CallOutcome.FAILURE, CallOutcome.NEITHER


def call(state: Breaker, outcome: CallOutcome, now: float, after: float | None = None, chance: float = 0.0) -> Breaker:
    state, permit = admit(state, now)
    assert isinstance(permit, Permit)
    return ended(state, permit, outcome, now, chance, after)


def calls(state: Breaker, outcomes: Iterable[CallOutcome], now: float = 0.0) -> Breaker:
    for outcome in outcomes:
        state = call(state, outcome, now)
    return state


def test_five_failures_in_a_row_open_the_breaker() -> None:
    assert calls(Breaker(), [BAD] * 4).phase is Phase.CLOSED
    assert calls(Breaker(), [BAD] * 4 + [OK] + [BAD] * 4).phase is Phase.CLOSED
    assert calls(Breaker(), [BAD] * 5).phase is Phase.OPEN


def test_failures_of_half_of_ten_requests_open_the_breaker() -> None:
    assert calls(Breaker(), [OK, BAD] * 4 + [OK]).phase is Phase.CLOSED, "fewer than ten"
    assert calls(Breaker(), [OK, BAD] * 5).phase is Phase.OPEN
    assert calls(Breaker(), [OK, OK, BAD] * 20).phase is Phase.CLOSED, "a third"


def test_only_the_last_thirty_seconds_count() -> None:
    old = calls(Breaker(), [OK, BAD] * 4, now=0.0)
    assert calls(old, [OK, BAD], now=29.9).phase is Phase.OPEN
    assert calls(old, [OK, BAD], now=30.0).phase is Phase.CLOSED


def test_neutral_outcomes_are_not_counted() -> None:
    state = calls(Breaker(), [BAD] * 4)
    assert calls(state, [NEITHER] * 100) == state
    assert calls(state, [NEITHER, BAD]).phase is Phase.OPEN


@pytest.mark.parametrize(
    ("opened", "chance", "after", "seconds"),
    [
        (0, 0.0, None, 5.0),
        (1, 0.0, None, 10.0),
        (3, 0.0, None, 40.0),
        (4, 0.0, None, 60.0),
        (900, 0.0, None, 60.0),
        (0, 1.0, None, 5.5),
        (0, 0.0, 33.0, 33.0),
        (0, 0.0, 120.0, 120.0),
        (0, 0.0, 121.0, 5.0),
        (0, 0.0, 0.0, 5.0),
        (0, 0.0, 0.001, 5.0),
        (3, 0.0, 33.0, 40.0),
    ],
)
def test_the_breaker_stays_open_for_a_growing_time_or_the_retry_after(
    opened: int, chance: float, after: float | None, seconds: float
) -> None:
    state = Breaker(phase=Phase.HALF_OPEN, opened=opened - 1, probing=True, period=3)
    if opened == 0:
        state = Breaker(run=4, period=3)
    state = ended(state, Permit(3), BAD, 100.0, chance, after)
    assert state.phase is Phase.OPEN
    assert state.until == pytest.approx(100.0 + seconds)


def test_the_probes_outcome_decides() -> None:
    state = calls(Breaker(), [BAD] * 5, now=0.0)
    state, refused = admit(state, 4.0)
    assert refused == CallRefused(1.0)
    state, probe = admit(state, 5.0)
    assert isinstance(probe, Permit)
    assert state.phase is Phase.HALF_OPEN
    assert admit(state, 5.1)[1] == CallRefused(PROBE_WAIT), "one at a time"
    assert ended(state, probe, OK, 6.0, 0.0).phase is Phase.CLOSED
    again = ended(state, probe, BAD, 6.0, 0.0)
    assert (again.phase, again.until) == (Phase.OPEN, 16.0)
    neither = ended(state, probe, NEITHER, 6.0, 0.0)
    assert neither.phase is Phase.HALF_OPEN
    assert isinstance(admit(neither, 6.0)[1], Permit)


def test_other_requests_are_admitted_once_the_probes_answer_has_begun() -> None:
    state = calls(Breaker(), [BAD] * 5, now=0.0)
    state, probe = admit(state, 5.0)
    assert isinstance(probe, Permit)
    state = begun(state, probe)
    for _ in range(3):
        state, other = admit(state, 5.1)
        assert isinstance(other, Permit)
        assert state.phase is Phase.HALF_OPEN
    assert ended(state, probe, OK, 6.0, 0.0).phase is Phase.CLOSED
    again = ended(state, other, BAD, 6.0, 0.0)
    assert (again.phase, again.until) == (Phase.OPEN, 16.0), "any of their failures opens it"
    assert begun(again, probe) == again, "events of earlier periods are ignored"
    assert begun(Breaker(), Permit(0)) == Breaker()


def test_requests_from_before_the_opening_do_not_count() -> None:
    state, late = admit(Breaker(), 0.0)
    assert isinstance(late, Permit)
    state = calls(state, [BAD] * 5)
    assert ended(state, late, OK, 1.0, 0.0) == state
    state, _probe = admit(state, 5.0)
    assert ended(state, late, OK, 6.0, 0.0) == state
    assert ended(state, late, BAD, 6.0, 0.0) == state


STEPS = st.tuples(st.sampled_from([OK, BAD, NEITHER]), st.floats(0, 20), st.floats(0, 1))


@given(st.lists(STEPS, max_size=200))
def test_an_open_breaker_admits_one_request_after_a_bounded_time(steps: list[tuple[CallOutcome, float, float]]) -> None:
    """Nothing is admitted before that, and the time is at most 66 s."""
    state, now, passed_while_half_open = Breaker(), 0.0, 0
    for outcome, gap, chance in steps:
        now += gap
        before = state
        state, found = admit(state, now)
        if isinstance(found, CallRefused):
            assert before.phase is not Phase.CLOSED
            assert 0 < found.seconds <= 66
            continue
        if before.phase is Phase.OPEN:
            assert now >= before.until
            assert isinstance(admit(state, now)[1], CallRefused)
            passed_while_half_open += 1
        state = ended(state, found, outcome, now, chance)
        assert len(state.buckets) <= 30
        if state.phase is Phase.OPEN:
            assert isinstance(admit(state, state.until)[1], Permit)
    assert passed_while_half_open <= len(steps)
