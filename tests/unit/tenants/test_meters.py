"""A rate gives back what a request did not use, exactly as far as it has not drained."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.limits.meters import SECOND, Budget, Hold, Rate
from tests.unit.tenants.line import MINUTE, Line


def test_overlapping_requests_are_each_given_back_their_own() -> None:
    """15 hold all of a minute's 60,000 and have used 100 each, 10 s later: the first three have drained by then."""
    meter = Rate(60_000, 0)
    holds = [meter.take(4000, 0) for _ in range(15)]
    for hold in holds:
        meter.settle(hold, 100, 10 * SECOND)
    assert meter.level(10 * SECOND).remaining == 60_000 - 12 * 100


def test_what_a_hold_has_drained_is_given_to_the_next_and_not_back() -> None:
    """60 a minute. The first's 60 have drained by half, and others took that half: its end gives back 30, not 59."""
    meter = Rate(60, 0)
    first = meter.take(60, 0)
    meter.take(30, 30 * SECOND)
    meter.settle(first, 1, 30 * SECOND)
    assert meter.level(30 * SECOND).remaining == 30


@pytest.mark.parametrize("limit", [1, 7, 60, 60_000])
@given(seed=st.integers(0, 2**32))
def test_it_is_the_line_reported_step_by_step(limit: int, seed: int) -> None:
    """Whatever comes and ends when, also over what was reserved, over the limit, and while the limit changes."""
    chance, now = random.Random(seed), 10**12
    meter, line = Rate(limit, now), Line(limit, now)
    running: list[tuple[int, Hold]] = []
    for whose in range(1, 60):
        now += chance.choice((0, 1, chance.randint(0, MINUTE // limit), chance.randint(0, 20 * SECOND)))
        line.pass_to(now)
        match chance.randint(0, 9):
            case 0:
                limit = line.limit = chance.randint(1, 2 * limit)
                meter.change(limit, now)
            case 1 | 2 | 3 | 4 if running:
                one, hold = running.pop(chance.randrange(len(running)))
                used = chance.randint(0, hold.amount + chance.choice((0, 0, 3)))
                meter.settle(hold, used, now)
                line.end(one, hold.amount, used)
            case _:
                amount = chance.randint(0, limit)
                assert (meter.wait(amount, now) == 0.0) == line.fits(amount)
                running.append((whose, meter.take(amount, now)))
                line.take(whose, amount)
        assert meter.level(now).remaining == max(0, line.room() // MINUTE)
        wait = meter.wait(limit, now)
        assert wait is not None
        assert round(wait * SECOND) == pytest.approx(max(0, -(-(limit * MINUTE - line.room()) // limit)), abs=1e4)


@given(st.integers(1, 2000), st.integers(0, 2**32))
def test_never_more_is_used_than_the_limit_in_any_time(limit: int, seed: int) -> None:
    """Counted where they were let in: of any span no more is used than the limit, and what drained in that span."""
    chance, now = random.Random(seed), 0
    meter = Rate(limit, now)
    running: list[tuple[int, Hold, int]] = []
    let_in: list[tuple[int, int]] = []
    for _ in range(60):
        now += chance.choice((0, chance.randint(0, MINUTE // limit), chance.randint(0, 5 * SECOND)))
        for one in [one for one in running if one[0] <= now]:
            running.remove(one)
            meter.settle(one[1], one[2], now)
        amount = chance.randint(0, limit)
        if meter.wait(amount, now) == 0.0:
            used = chance.choice((amount, chance.randint(0, amount)))
            running.append((now + chance.randint(0, 2 * MINUTE), meter.take(amount, now), used))
            let_in.append((now, used))
    for first, (begin, _) in enumerate(let_in):
        total = 0
        for end, used in let_in[first:]:
            total += used
            assert total * MINUTE <= limit * (MINUTE + end - begin)


def test_the_line_is_no_longer_than_what_is_under_way() -> None:
    """Thousands that end at once, between three that run on: their places stay, and are given back exactly."""
    meter, line = Rate(200_000, 0), Line(200_000, 0)
    held: list[Hold] = []
    for number in range(6000):
        meter.settle(meter.take(3, 0), 2, 0)
        line.take(0, 2)
        if number % 2000 == 0:
            held.append(meter.take(1000, 0))
            line.take(len(held), 1000)
    assert len(meter._line) < 100
    now = MINUTE * 5502 // 200_000  # the first held has drained, and of the second a half
    line.pass_to(now)
    for whose, hold in enumerate(held, 1):
        meter.settle(hold, 0, now)
        line.end(whose, 1000, 0)
        assert meter.level(now).remaining == line.room() // MINUTE


def test_a_budget_survives_a_clock_that_jumps_ahead_and_is_set_right() -> None:
    """Days of 100 s. It would stay in the day to come, with all of the money, until that was over."""
    now = 150.0
    budget = Budget(10, lambda at: (int(at) // 100 * 100, int(at) // 100 * 100 + 100), 7, lambda: now)
    running = budget.take(2, 0)
    now = 100_150.0
    assert budget.level(0).remaining == 10
    budget.take(4, 0)
    budget.settle(running, 1, 0)
    assert budget.spent == 4
    now = 160.0
    assert (budget.spent, budget.begin) == (8, 100)
    assert budget.wait(3, 0) == 40.0
    now = 100_199.0
    assert budget.spent == 4
