"""Any rank key: the order that it gives, the floor of the later ranks, and the bound on everybody's waiting."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.scheduling.placement import Placement
from runtime.scheduling.rank import Rank
from tenants.classes import ServiceClass
from tests.unit.scheduling.simulator import Arrival, Served, Witness, simulate
from tests.unit.scheduling.test_placement import NAMES, within_bound

CRITICAL, INTERACTIVE, BATCH = ServiceClass
classes = st.sampled_from(ServiceClass)
shares = st.floats(allow_nan=False) | st.sampled_from([0.0, 1.0, 2.0])


def witness(places: int, host: int, max_requests: int, oldest_every: int, overtake: float = 0.5) -> Witness:
    policy = Placement(places, host, max_requests, max_overtake=overtake, oldest_every=oldest_every)
    return Witness(policy, places, host, max_requests)


@given(st.lists(st.tuples(classes, shares), min_size=1, max_size=30), st.integers(1, 4))
def test_requests_start_by_class_then_share_then_arrival(keys: list[tuple[ServiceClass, float]], room: int) -> None:
    policy = Placement(0, 0, room, oldest_every=1000)
    for number, (service_class, share) in enumerate(keys):
        policy.enqueue(str(number), None, 0.0, service_class, share)
    started: list[str] = []
    while now := policy.decide(0.0).start:
        started += now
        for request in now:
            policy.finish(request, 0.0)
    assert started == sorted(map(str, range(len(keys))), key=lambda request: (*keys[int(request)], int(request)))


@given(st.lists(st.tuples(classes, shares), min_size=2, max_size=20), st.integers(0, 19), st.integers(0, 19))
def test_promoted_ranks_are_first_and_in_order_of_arrival(
    keys: list[tuple[ServiceClass, float]], one: int, other: int
) -> None:
    ranks = [Rank(*key, number) for number, key in enumerate(keys)]
    promoted = [rank.promoted() for rank in ranks[: one + 1]]
    assert sorted(promoted) == promoted
    assert max(promoted) < min(ranks[one + 1 :], default=Rank(BATCH, 0.0, 1000))
    assert ranks[other % len(ranks)].promoted() <= ranks[other % len(ranks)]


def test_a_share_without_an_order_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a number"):
        Placement(0, 0, 1).enqueue("a", None, 0.0, share=float("nan"))


def test_a_class_goes_first_whatever_its_share() -> None:
    policy = Placement(0, 0, 1)
    policy.enqueue("batch", None, 0.0, BATCH, 0.0)
    policy.enqueue("much", None, 0.1, INTERACTIVE, 900.0)
    policy.enqueue("little", None, 0.2, INTERACTIVE, 1.0)
    policy.enqueue("critical", None, 0.3, CRITICAL, 5000.0)
    started = []
    while start := policy.decide(1.0).start:
        started += start
        policy.finish(start[0], 1.0)
    assert started == ["critical", "little", "much", "batch"]


def test_a_place_goes_to_the_first_rank_and_is_kept_for_it() -> None:
    """Rules 4 to 6 by rank: a critical request's adapter is not closed out by a batch one that is older."""
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
    policy.enqueue("old", b, 0.1, BATCH)
    assert policy.decide(0.1).stage == (b,)
    policy.staged(b)
    policy.enqueue("young", a, 5.0, CRITICAL)
    policy.decide(5.0)
    policy.finish("runs", 6.0)
    assert policy.decide(6.0).start == ("young",)
    policy.finish("young", 7.0)
    assert policy.decide(7.0).place == ((b, a),)


def endless(seen: Witness, first: Arrival, better: Callable[[int], Arrival], until: float) -> list[Served]:
    """`first`, and beside it clients who are always there with requests of earlier ranks."""
    count = iter(range(1_000_000))
    flood = [replace(better(next(count)), at=0.0) for _ in range(2 * seen.max_requests)]

    def again(request: str, digest: str | None, now: float) -> Arrival:
        return replace(better(next(count)), at=now)

    return simulate(seen, [*flood, first], stage=0.05, place=0.01, until=until, after=again)


@pytest.mark.parametrize("oldest_every", [1, 5, 20])
def test_a_request_is_promoted_after_so_many_steps(oldest_every: int) -> None:
    seen = witness(0, 0, 1, oldest_every)
    first = Arrival(0.05, None, 1.0, BATCH)
    done = endless(seen, first, lambda number: Arrival(0.0, None, 1.0, CRITICAL), until=200.0)
    passed = next(index for index, served in enumerate(done) if served.arrival is first)
    # One older request waits already; each of the two is promoted after so many starts, and then goes first.
    assert oldest_every <= passed <= 2 * oldest_every + 1


def test_the_floor_of_a_class_is_its_part_of_the_starts() -> None:
    """Batch work that is always there, against critical work that is: one start in ten is by arrival."""
    seen = witness(0, 0, 4, oldest_every=10)
    batch = [Arrival(0.0, None, 1.0, BATCH) for _ in range(400)]
    critical = [Arrival(0.1, None, 1.0, CRITICAL) for _ in range(8)]

    def again(request: str, digest: str | None, now: float) -> Arrival:
        return Arrival(now, None, 1.0, CRITICAL)

    done = simulate(seen, batch + critical, stage=0.0, place=0.0, until=500.0, after=again)
    late = [served for served in done if served.started > 10.0]
    part = sum(served.arrival.service_class is BATCH for served in late) / len(late)
    assert 0.09 <= part <= 0.11


def test_ever_better_ranks_with_ever_new_adapters_cannot_keep_anybody_out() -> None:
    """Each newcomer takes the host memory and the place that the one before was about to get."""
    seen = witness(1, 2, 2, oldest_every=5)
    first = Arrival(0.05, NAMES[0], 0.2, BATCH)
    better = [Arrival(0.04 * number, NAMES[1 + number % 39], 0.2, CRITICAL, -float(number)) for number in range(400)]
    done = simulate(seen, [*better, first], stage=0.05, place=0.01)
    within_bound(seen, done, 0.05, 0.01, 4, oldest_every=5)
    waited = next(served.wait for served in done if served.arrival is first)
    assert waited < 10.0, "of 100 s and more that the others take"


arrival = st.tuples(
    st.floats(0, 1.0) | st.just(0.0), st.none() | st.integers(0, 11), st.floats(0.001, 2.0), classes, shares
)


@settings(max_examples=400)
@given(
    steps=st.lists(arrival, min_size=1, max_size=120),
    places=st.integers(1, 5),
    extra=st.integers(0, 6),
    slots=st.integers(1, 8),
    overtake=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    oldest_every=st.integers(1, 6),
    stage=st.sampled_from([0.0, 0.01, 0.5]),
    place=st.sampled_from([0.0, 0.01, 0.3]),
)
def test_every_request_starts_within_the_bound_whatever_its_rank(
    steps: list[tuple[float, int | None, float, ServiceClass, float]],
    places: int,
    extra: int,
    slots: int,
    overtake: float,
    oldest_every: int,
    stage: float,
    place: float,
) -> None:
    seen = witness(places, places + extra, slots, oldest_every, overtake)
    now, trace = 0.0, []
    for gap, digest, length, service_class, share in steps:
        now += gap
        trace.append(Arrival(now, None if digest is None else NAMES[digest], length, service_class, share))
    done = simulate(seen, trace, stage=stage, place=place)
    within_bound(seen, done, stage, place, 4, oldest_every)


@settings(max_examples=100)
@given(
    trace=st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 5), st.floats(0.001, 0.5)), min_size=1, max_size=60),
    oldest_every=st.integers(1, 20),
)
def test_where_ranks_are_arrivals_promotion_changes_nothing(
    trace: list[tuple[float, int, float]], oldest_every: int
) -> None:
    now, arrivals = 0.0, []
    for gap, digest, length in trace:
        now += gap
        arrivals.append(Arrival(now, NAMES[digest], length))
    waits = [
        [served.wait for served in simulate(witness(2, 3, 2, every), arrivals, stage=0.05, place=0.01)]
        for every in (oldest_every, 1_000_000)
    ]
    assert waits[0] == waits[1]
