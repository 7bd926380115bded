"""A rate returns what a request did not use, except for what has drained."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.limits.meters import SECOND, Budget, Hold, Rate
from tests.unit.tenants.line import MINUTE, Line


def test_each_of_overlapping_requests_gets_its_own_unused_amount_back() -> None:
    """15 requests reserve a minute's 60,000 and use 100 each. After 10 s the first three have drained."""
    meter = Rate(60_000, 0)
    holds = [meter.take(4000, 0) for _ in range(15)]
    for hold in holds:
        meter.settle(hold, 100, 10 * SECOND)
    assert meter.level(10 * SECOND).remaining == 60_000 - 12 * 100


def test_a_drained_amount_is_not_returned() -> None:
    """At 60 per minute, half of the first's 60 has drained and been reserved by another, so it returns 30, not 59."""
    meter = Rate(60, 0)
    first = meter.take(60, 0)
    meter.take(30, 30 * SECOND)
    meter.settle(first, 1, 30 * SECOND)
    assert meter.level(30 * SECOND).remaining == 30


@pytest.mark.parametrize("limit", [1, 7, 60, 60_000])
@given(seed=st.integers(0, 2**32))
def test_a_rate_equals_the_simple_model(limit: int, seed: int) -> None:
    """For any order, also with usage over the reservation or the limit, and with changes of the limit."""
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
def test_usage_in_any_span_is_at_most_the_limit(limit: int, seed: int) -> None:
    """By times of admission, the usage of a span is at most the limit and what drains in the span."""
    chance, now = random.Random(seed), 0
    meter = Rate(limit, now)
    running: list[tuple[int, Hold, int]] = []
    admitted: list[tuple[int, int]] = []
    for _ in range(60):
        now += chance.choice((0, chance.randint(0, MINUTE // limit), chance.randint(0, 5 * SECOND)))
        for one in [one for one in running if one[0] <= now]:
            running.remove(one)
            meter.settle(one[1], one[2], now)
        amount = chance.randint(0, limit)
        if meter.wait(amount, now) == 0.0:
            used = chance.choice((amount, chance.randint(0, amount)))
            running.append((now + chance.randint(0, 2 * MINUTE), meter.take(amount, now), used))
            admitted.append((now, used))
    for first, (begin, _) in enumerate(admitted):
        total = 0
        for end, used in admitted[first:]:
            total += used
            assert total * MINUTE <= limit * (MINUTE + end - begin)


def test_the_memory_of_a_rate_is_bounded_by_running_requests() -> None:
    """Thousands of requests end at once between three running ones, whose reservations are returned exactly."""
    meter, line = Rate(200_000, 0), Line(200_000, 0)
    held: list[Hold] = []
    for number in range(6000):
        meter.settle(meter.take(3, 0), 2, 0)
        line.take(0, 2)
        if number % 2000 == 0:
            held.append(meter.take(1000, 0))
            line.take(len(held), 1000)
    assert len(meter._line) < 100
    now = MINUTE * 5502 // 200_000  # the first reservation and half of the second have drained
    line.pass_to(now)
    for whose, hold in enumerate(held, 1):
        meter.settle(hold, 0, now)
        line.end(whose, 1000, 0)
        assert meter.level(now).remaining == line.room() // MINUTE


def test_a_budget_is_correct_after_a_clock_jumps_ahead_and_back() -> None:
    """Days last 100 s. Otherwise the budget would stay in the later day, with all of its money, until that ended."""
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
