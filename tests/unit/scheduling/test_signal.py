"""The number of replicas that a model needs by the rules of `runtime.scheduling.signal`, and the rate of arrivals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduling.fair import SPAN, ArrivalRates
from runtime.scheduling.signal import (
    DOWN_LEADS,
    MOST_KV,
    ClassDemand,
    ModelDemand,
    desired_replicas,
)
from tenants.caller import ServiceClass


def needed(
    replicas: int,
    ahead: float = 0.0,
    arriving: float = 0.0,
    *,
    least: int = 1,
    kv_use: float = 0.0,
    rate: float = 100.0,
) -> int:
    """Return the replicas of a model with one class, a goal of 2 s, and a load time of 10 s."""
    return desired_replicas(ModelDemand(replicas, least, rate, 10.0, [ClassDemand(2.0, ahead, arriving)], kv_use))


@pytest.mark.parametrize(("replicas", "least", "expected"), [(0, 1, 0), (1, 1, 1), (2, 2, 2), (3, 1, 2)])
def test_a_model_without_requests_loses_a_replica_down_to_its_least(replicas: int, least: int, expected: int) -> None:
    assert desired_replicas(ModelDemand(replicas, least, 100.0, 10.0, [])) == expected


@pytest.mark.parametrize(
    ("replicas", "ahead", "arriving", "expected"),
    [
        (0, 0.0, 50.0, 0),  # nothing waits
        (0, 1.0, 0.0, 1),
        (0, 900.0, 250.0, 17),  # 900 and the arrivals of 10 s, within 2 s
        (1, 0.0, 90.0, 1),
        (1, 200.0, 100.0, 1),  # 2 s now and later
        (1, 200.0, 101.0, 2),  # 2.1 s in 10 s
        (1, 0.0, 119.0, 1),
        (1, 0.0, 121.0, 2),
        (1, 0.0, 450.0, 18),  # the 3,500 that wait then are served in 2 s
        (2, 0.0, 190.0, 2),
        (2, 0.0, 103.0, 2),  # with one, the wait would be 3 s after 100 s
        (2, 0.0, 101.0, 1),
        (2, 201.0, 0.0, 2),  # one could not start them within the goal
        (2, 199.0, 0.0, 1),
        (3, 0.0, 0.0, 2),  # one at a time
    ],
)
def test_replicas_are_added_before_the_goal_is_missed_and_removed_if_fewer_meet_it(
    replicas: int, ahead: float, arriving: float, expected: int
) -> None:
    assert needed(replicas, ahead, arriving) == expected


def test_there_are_never_fewer_replicas_than_the_recipes_least() -> None:
    assert needed(2, least=2) == 2
    assert needed(0, 1.0, least=3) == 3


def test_the_use_of_the_kv_cache_bounds_the_number_of_replicas() -> None:
    assert needed(2, kv_use=0.86) == 3
    assert needed(2, kv_use=0.5) == 2
    assert needed(2, kv_use=0.4) == 1


def test_without_measurements_the_number_is_unchanged() -> None:
    assert needed(2, 1e6, 1e6, rate=0.0) == 2
    assert needed(0, 1.0, rate=0.0) == 1


def test_each_class_has_its_own_goal() -> None:
    batch = ClassDemand(60.0, 3000.0, 10.0)
    assert desired_replicas(ModelDemand(1, 1, 100.0, 1.0, [batch])) == 1
    assert desired_replicas(ModelDemand(1, 1, 100.0, 1.0, [ClassDemand(2.0, 500.0, 5.0), batch])) == 3


CLASSES = st.lists(
    st.builds(ClassDemand, st.floats(0, 600), st.floats(0, 1e9), st.floats(0, 1e6)), min_size=1, max_size=3
)
DEMANDS = st.builds(
    ModelDemand,
    st.integers(0, 16),
    st.integers(1, 16),
    st.floats(0.01, 1e6),
    st.floats(1, 600),
    CLASSES,
    st.floats(0, 1),
)


@given(DEMANDS)
def test_replicas_are_removed_one_at_a_time_and_only_if_the_goal_is_met_for_ten_leads(demand: ModelDemand) -> None:
    result = desired_replicas(demand)
    assert result >= demand.replicas - 1 or not any(one.ahead for one in demand.classes)
    if demand.replicas and result < demand.replicas:
        assert result == demand.replicas - 1 >= demand.least
        for later in (0.0, demand.lead, DOWN_LEADS * demand.lead):
            assert all(one.wait(result * demand.rate, later) <= one.goal * 1.000001 for one in demand.classes)
        assert demand.kv_use * demand.replicas / result <= MOST_KV


@given(DEMANDS)
def test_the_needed_replicas_meet_the_goal_once_they_are_loaded(demand: ModelDemand) -> None:
    """The work that waits by then is as predicted."""
    result = desired_replicas(demand)
    if result <= demand.replicas or demand.kv_use > MOST_KV:
        return
    present = demand.replicas * demand.rate
    then = [
        ClassDemand(max(one.goal, 0.1), max(0.0, one.ahead + (one.arriving - present) * demand.lead), one.arriving)
        for one in demand.classes
    ]
    for one in then:
        assert one.wait(result * demand.rate, 0.0) <= one.goal * 1.000001
        if one.wait(present, 0.0) > one.goal:
            assert one.arriving <= result * demand.rate * 1.000001


def test_the_rate_of_arrivals_is_averaged() -> None:
    rates = ArrivalRates(0.0)
    assert rates.rate(ServiceClass.BATCH, 5.0) == 0.0
    for second in range(600):
        rates.add(ServiceClass.BATCH, 7.0, float(second))
    assert rates.rate(ServiceClass.BATCH, 599.0) == pytest.approx(7.0, rel=0.03)
    assert rates.rate(ServiceClass.INTERACTIVE, 599.0) == 0.0
    assert rates.rate(ServiceClass.BATCH, 599.0 + 3 * SPAN) < 0.4


def test_the_rate_of_the_first_requests_is_not_too_low() -> None:
    rates = ArrivalRates(100.0)
    for tenth in range(50):
        rates.add(ServiceClass.CRITICAL, 1.0, 100.0 + tenth / 10)
    assert rates.rate(ServiceClass.CRITICAL, 105.0) == pytest.approx(10.0, rel=0.1)
