"""Service classes: higher ones come first, and each lower one has a floor."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.scheduling.fair import Floors, QueueRequest
from runtime.scheduling.placement import Placement
from tenants.caller import ServiceClass
from tests.unit.scheduling.fair.drive import Loop, backlogged
from tests.unit.scheduling.simulator import Arrival, Witness, simulate
from tests.unit.scheduling.test_placement import NAMES

CRITICAL, INTERACTIVE, BATCH = ServiceClass


def claim(service_class: ServiceClass, work: float = 10.0) -> QueueRequest:
    return QueueRequest(service_class.label, service_class=service_class, work=work)


def test_higher_classes_come_first_regardless_of_earlier_work() -> None:
    policy = Placement(0, 0, 1, floor=0.0)
    for name, service_class, work in [
        ("batch", BATCH, 1.0), ("much", INTERACTIVE, 900.0), ("more", INTERACTIVE, 1.0), ("critical", CRITICAL, 5000.0)
    ]:  # fmt: skip
        policy.enqueue(name, None, 0.0, claim(service_class, work))
    order: list[str] = []
    while start := policy.decide(0.0).start:
        order += start
        policy.finish(start[0], 0.0)
    assert order == ["critical", "much", "more", "batch"]


@pytest.mark.parametrize("floor", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("work", [1.0, 10.0, 300.0])
def test_each_waiting_class_gets_its_floor(floor: float, work: float) -> None:
    loop = Loop(Placement(0, 0, 4, floor=floor))
    backlogged(loop, [claim(CRITICAL), claim(INTERACTIVE), claim(BATCH, work)], 6_000, deep=5)
    total = sum(loop.classes.values())
    for lower in (INTERACTIVE, BATCH):
        assert loop.classes[lower] / total == pytest.approx(floor, rel=0.1, abs=2 * work / total)


def test_without_a_floor_a_lower_class_waits() -> None:
    loop = Loop(Placement(0, 0, 4, floor=0.0))
    backlogged(loop, [claim(CRITICAL), claim(BATCH)], 500, deep=5)
    assert loop.classes[BATCH] == 0


def test_a_changed_floor_applies_at_once() -> None:
    loop = Loop(Placement(0, 0, 4, floor=0.0))
    backlogged(loop, [claim(CRITICAL), claim(BATCH)], 500, deep=5)
    loop.policy.share(0.2, {})
    backlogged(loop, [claim(CRITICAL), claim(BATCH)], 2000, deep=5)
    assert loop.classes[BATCH] / (2000 * 10.0) == pytest.approx(0.2, rel=0.1)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(ServiceClass), st.floats(1.0, 40.0)), min_size=50, max_size=200))
@pytest.mark.long
def test_a_waiting_class_is_at_most_one_request_behind_its_floor(
    steps: list[tuple[ServiceClass, float]],
) -> None:
    """Batch always waits, and starts whenever its floor is due. Other classes start at will."""
    floors, total, had = Floors(0.05), 0.0, 0.0
    for service_class, work in steps:
        first = floors.order([*ServiceClass])[0]
        pays = floors.owed(first)
        chosen = first if pays else service_class
        if pays or chosen is CRITICAL:
            floors.done(chosen, work, [*ServiceClass], pays=pays)
            total += work
            had += work if chosen is BATCH else 0.0
        assert had >= 0.05 * total - 0.05 * 40.0 - 40.0
    with pytest.raises(ValueError, match="half"):
        Floors(0.5)


def test_a_class_with_rare_requests_gets_only_its_floor() -> None:
    """With one batch request at a time, batch gets no more than its floor while critical requests wait."""
    loop = Loop(Placement(0, 0, 1))
    for _ in range(2000):
        loop.ask(claim(CRITICAL))
    loop.ask(claim(BATCH))
    for _ in range(1000):
        for name in loop.start():
            if loop.claims[name].service_class is BATCH:
                loop.ask(claim(BATCH))
        loop.end()
    assert loop.classes[BATCH] / sum(loop.classes.values()) == pytest.approx(0.05, abs=0.01)


def test_a_place_goes_to_the_higher_class_and_stays_open_for_it() -> None:
    """In rules 4 to 6, an older batch request does not close the place of a critical request's adapter."""
    policy = Placement(1, 2, 1, max_overtake=1.0)
    a, b = NAMES[:2]
    policy.enqueue("runs", a, 0.0)
    for _ in range(3):
        plan = policy.decide(0.0)
        for digest in plan.stage:
            policy.staged(digest)
        for digest, _victim in plan.place:
            policy.placed(digest, 0.0)
    assert policy.running == 1
    policy.enqueue("old", b, 0.1, claim(BATCH))
    assert policy.decide(0.1).stage == (b,)
    policy.staged(b)
    policy.enqueue("young", a, 5.0, claim(CRITICAL))
    policy.decide(5.0)
    policy.finish("runs", 6.0)
    assert policy.decide(6.0).start == ("young",)
    policy.finish("young", 7.0)
    assert policy.decide(7.0).place == ((b, a),)


def test_endless_higher_requests_with_new_adapters_do_not_starve_a_lower_one() -> None:
    """Each new request takes the host memory and the place that the one before was about to get."""
    policy = Placement(1, 2, 2, max_overtake=0.5)
    first = Arrival(0.05, NAMES[0], 0.2, claim(BATCH))
    better = [Arrival(0.04 * number, NAMES[1 + number % 39], 0.2, claim(CRITICAL)) for number in range(400)]
    done = simulate(Witness(policy, 1, 2, 2), [*better, first], stage=0.05, place=0.01)
    waited = next(served.wait for served in done if served.arrival is first)
    assert waited < 10.0, "the others take more than 100 s"


def test_a_swap_is_charged_to_the_team_that_needs_the_adapter() -> None:
    policy = Placement(2, 4, 1)
    a, b = NAMES[:2]
    for number in range(3):
        policy.enqueue(f"swaps{number}", a, 0.0, QueueRequest("swaps"))
        policy.enqueue(f"base{number}", None, 0.0, QueueRequest("base"))
    for digest in policy.decide(0.0).stage:
        policy.staged(digest)
    policy.decide(0.0)
    policy.swapped(a, 50.0)
    policy.swapped(b, 50.0)  # no request waits for it
    policy.placed(a, 0.0)
    order: list[str] = []
    for _ in range(4):
        policy.finish("base0" if not order else order[-1], 0.0)
        order += policy.decide(0.0).start
    assert order[:2] == ["base1", "base2"]
