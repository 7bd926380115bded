"""Spare places: a new team at a full engine need not wait for the end of other answers."""

from collections import Counter
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduling.fair import Pool, QueueRequest
from runtime.scheduling.placement import Placement
from tenants.caller import ServiceClass

PLACES, SPARE = 8, 3


def full(policy: Placement, claim: QueueRequest = QueueRequest("flood"), number: int = 40) -> list[str]:  # noqa: B008
    """Enqueue a flood of requests, and return those that start."""
    for index in range(number):
        policy.enqueue(f"{claim.team}{index}", None, 0.0, claim)
    return list(policy.decide(0.0).start)


def start(policy: Placement, *names: str, claim: QueueRequest) -> list[str]:
    for name in names:
        policy.enqueue(name, None, 1.0, claim)
    return list(policy.decide(1.0).start)


def test_another_team_starts_at_once_and_the_flood_gets_the_other_places() -> None:
    policy = Placement(0, 0, PLACES, spare=SPARE)
    running = full(policy)
    assert len(running) == PLACES, "alone it has all places, but no spare ones"
    assert start(policy, "a", "b", claim=QueueRequest("quiet")) == ["a", "b"]
    for number in (0, 1):
        policy.finish(running[number], 2.0)
        assert policy.decide(2.0).start == (), "the engine is still full"
    policy.finish(running[2], 2.0)
    assert len(policy.decide(2.0).start) == 1
    policy.finish("a", 3.0)
    policy.finish("b", 3.0)
    assert len(policy.decide(3.0).start) == 2
    assert policy.running == PLACES


def test_a_spare_place_stays_free_while_no_request_is_ready() -> None:
    policy = Placement(1, 2, PLACES, spare=SPARE)
    full(policy, number=PLACES)
    policy.enqueue("adapter", "sha256:a", 1.0, QueueRequest("quiet"))
    plan = policy.decide(1.0)
    assert (plan.start, plan.stage) == ((), ("sha256:a",))


def test_requests_beyond_the_teams_share_or_the_spare_places_wait() -> None:
    policy = Placement(0, 0, PLACES, spare=SPARE)
    full(policy)
    assert start(policy, *"abcd", claim=QueueRequest("quiet")) == ["a", "b", "c"]
    many = Placement(0, 0, PLACES, spare=20)
    full(many)
    assert start(many, *"abcdefgh", claim=QueueRequest("quiet")) == list("abcd"), "its share is half of the places"


def test_spare_places_are_for_a_teams_higher_classes_too() -> None:
    policy = Placement(0, 0, PLACES, spare=SPARE)
    full(policy, QueueRequest("us", service_class=ServiceClass.BATCH))
    assert start(policy, "batch", claim=QueueRequest("us", service_class=ServiceClass.BATCH)) == []
    assert start(policy, "critical", claim=QueueRequest("us", service_class=ServiceClass.CRITICAL)) == ["critical"]


def test_lower_classes_get_no_spare_place_while_higher_ones_wait() -> None:
    policy = Placement(0, 0, PLACES, spare=SPARE, floor=0.0)
    full(policy, QueueRequest("us", service_class=ServiceClass.INTERACTIVE))
    assert start(policy, "batch", claim=QueueRequest("other", service_class=ServiceClass.BATCH)) == []
    assert start(policy, "equal", claim=QueueRequest("other")) == ["equal"]


def test_a_lower_class_with_a_due_floor_does_not_delay_critical_requests() -> None:
    policy = Placement(0, 0, PLACES, spare=SPARE)
    full(policy, QueueRequest("flood", service_class=ServiceClass.BATCH))
    batch = 0
    for number in range(100):
        started = start(policy, f"c{number}", claim=QueueRequest("quiet", service_class=ServiceClass.CRITICAL))
        assert f"c{number}" in started
        policy.finish(f"c{number}", 2.0)
        started += policy.decide(2.0).start
        flood = [name for name in started if name.startswith("flood")]
        batch += len(flood)
        for name in flood:  # ends before the next critical request
            policy.finish(name, 3.0)
    assert 3 <= batch <= 7, "a twentieth of the work"


def test_a_lower_class_gets_no_spare_place_while_a_higher_one_waits_for_an_adapter() -> None:
    policy = Placement(1, 1, PLACES, spare=SPARE, floor=0.0)
    full(policy, QueueRequest("flood", service_class=ServiceClass.BATCH))
    policy.enqueue("c", "sha256:other", 1.0, QueueRequest("quiet", service_class=ServiceClass.CRITICAL))
    plan = policy.decide(1.0)
    assert plan.stage, "its adapter is being staged"
    assert plan.start == ()


@pytest.mark.parametrize("places", [28, 32])
@pytest.mark.parametrize("spare", [0, 4])
def test_spare_places_do_not_change_shares_by_weight_and_class(spare: int, places: int) -> None:
    """Four teams always have requests: three share by weight, and one in a lower class gets its floor.

    The shares may be fractions of places.
    """
    policy, work = Placement(0, 0, places, spare=spare), Counter[str]()
    claims = {
        name: QueueRequest(name, weight=weight, work=10.0) for name, weight in (("a", 1.0), ("b", 2.0), ("c", 4.0))
    }
    claims["batch"] = QueueRequest("batch", service_class=ServiceClass.BATCH, work=10.0)
    rng, numbers, running = Random(1), count(), list[str]()

    def ask(name: str) -> None:
        policy.enqueue(f"{name} {next(numbers)}", None, 0.0, claims[name])

    for name in claims:
        for _ in range(60):
            ask(name)
    for step in range(8000):
        running += policy.decide(step).start
        ended = running.pop(rng.randrange(len(running)))
        policy.finish(ended, step, 10.0)
        name = ended.split()[0]
        work[name] += step >= 1000
        ask(name)
    whole = work.total()
    assert work["batch"] / whole == pytest.approx(0.05, abs=0.01)
    for name, weight in (("a", 1), ("b", 2), ("c", 4)):
        assert work[name] / (whole - work["batch"]) == pytest.approx(weight / 7, rel=0.02)


def test_a_pool_keeps_its_reserved_places() -> None:
    policy = Placement(0, 0, PLACES, spare=1, pools={"fast": Pool(reserved=2)})
    assert len(full(policy)) == PLACES - 2
    assert start(policy, "a", claim=QueueRequest("quiet")) == []
    assert start(policy, "b", claim=QueueRequest("quiet", pool="fast")) == ["b"]


@given(
    teams=st.lists(st.sampled_from("abcd"), min_size=1, max_size=60),
    places=st.integers(1, 9),
    spare=st.integers(0, 4),
    data=st.data(),
)
def test_places_are_bounded_used_and_free_at_the_end_for_any_order(
    teams: list[str], places: int, spare: int, data: st.DataObject
) -> None:
    """No more requests run than there is room for, none wait while places are free, and all are served."""
    policy, running, started = Placement(0, 0, places, spare=spare), list[str](), 0
    for number, team in enumerate(teams):
        policy.enqueue(str(number), None, number, QueueRequest(team))
        if running and data.draw(st.booleans()):
            policy.finish(running.pop(data.draw(st.integers(0, len(running) - 1))), number)
            started += 1
        running += policy.decide(number).start
        assert len(running) <= places + spare
        assert not policy.waiting or len(running) >= places
    while running:
        policy.finish(running.pop(), 1e9)
        started += 1
        running += policy.decide(1e9).start
    assert (started, policy.waiting, policy.running) == (len(teams), 0, 0)
