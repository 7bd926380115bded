"""Teams and keys share by weight, for any arrivals and within the promised bounds."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.scheduling.fair import QueueRequest
from runtime.scheduling.placement import Placement
from tenants.caller import ServiceClass
from tests.unit.scheduling.fair.drive import Loop, backlogged, jain

LARGEST = 50.0
works = st.floats(1.0, LARGEST)
weights = st.sampled_from([0.5, 1.0, 2.0, 4.0])


@settings(max_examples=300)
@given(
    weight=st.tuples(weights, weights),
    others=st.lists(
        st.tuples(st.integers(0, 4), works, weights, st.sampled_from(ServiceClass), st.booleans()), max_size=60
    ),
    sizes=st.lists(works, min_size=1, max_size=7),
    places=st.integers(1, 6),
    data=st.data(),
)
@pytest.mark.long
def test_two_waiting_teams_get_equal_work_by_weight_whatever_others_do(
    weight: tuple[float, float],
    others: list[tuple[int, float, float, ServiceClass, bool]],
    sizes: list[float],
    places: int,
    data: st.DataObject,
) -> None:
    """Teams a and b always wait. The difference of work / weight is bounded while others arrive in any class."""
    loop = Loop(Placement(0, 0, places))
    numbers = {"a": 0, "b": 0}

    def more(team: str) -> None:
        number = numbers[team]
        numbers[team] += 1
        size = sizes[(number * (2 if team == "a" else 3)) % len(sizes)]
        loop.ask(QueueRequest(team, weight=weight["ab".index(team)], work=size))

    for team in "ab" * 7:
        more(team)
    for team_number, work, other_weight, service_class, end_first in others:
        loop.ask(QueueRequest(f"other{team_number}", "k", other_weight, service_class, work))
        if end_first and loop.running:
            loop.end(data.draw(st.integers(0, len(loop.running) - 1)))
        for name in loop.start():
            if loop.claims[name].team in numbers:
                more(loop.claims[name].team)
        assert len(loop.running) == places, "work-conserving"
        gap = abs(loop.served["a"] / weight[0] - loop.served["b"] / weight[1])
        assert gap <= LARGEST * max(1 / weight[0], 1 / weight[1]) + 1e-6


@settings(max_examples=200)
@given(
    guesses=st.lists(works, min_size=1, max_size=5),
    truths=st.lists(works, min_size=1, max_size=5),
    weight=st.tuples(weights, weights),
    places=st.integers(1, 4),
    seed=st.integers(0, 100),
)
@pytest.mark.long
def test_wrong_estimates_are_corrected(
    guesses: list[float], truths: list[float], weight: tuple[float, float], places: int, seed: int
) -> None:
    """For any errors of estimates, teams' work differs by at most the error of running requests."""
    count = iter(range(10**6))
    loop = Loop(Placement(0, 0, places), real=lambda claim: truths[next(count) % len(truths)])
    claims = [
        QueueRequest(team, weight=weight[index], work=guesses[index % len(guesses)]) for index, team in enumerate("ab")
    ]
    backlogged(loop, claims, steps=150, deep=2, seed=seed)
    gap = abs(loop.had["a"] / weight[0] - loop.had["b"] / weight[1])
    assert gap <= 2 * LARGEST * (1 + places) * (1 / weight[0] + 1 / weight[1])


@settings(max_examples=100)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), works, weights, st.sampled_from(ServiceClass)),
        min_size=1,
        max_size=80,
    ),
    cancelled=st.sets(st.integers(0, 79)),
    places=st.integers(1, 4),
)
def test_all_are_served_and_no_place_is_idle_while_a_request_waits(
    arrivals: list[tuple[int, int, float, float, ServiceClass]], cancelled: set[int], places: int
) -> None:
    loop = Loop(Placement(0, 0, places))
    for team, key, work, weight, service_class in arrivals:
        loop.ask(QueueRequest(f"team{team}", f"key{key}", weight, service_class, work))
    gone = {str(number) for number in cancelled if loop.policy.cancel(str(number))}
    while loop.policy.waiting:
        loop.start()
        assert len(loop.running) == places or not loop.policy.waiting
        if loop.running:
            loop.end()
    assert len(loop.order) == len(arrivals) - len(gone)
    assert sum(loop.policy.waiting_by_class().values()) == 0


def test_shares_match_weights_of_1_2_and_4_within_5_per_cent() -> None:
    loop = Loop(Placement(0, 0, 16))
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    backlogged(loop, [QueueRequest(team, weight=weight, work=10.0) for team, weight in weights.items()], 4000, deep=20)
    shares = [loop.had[team] / weight for team, weight in weights.items()]
    assert max(shares) / min(shares) < 1.05


def test_a_flood_of_small_or_of_many_requests_gains_nothing() -> None:
    """Shares count tokens: one team has small requests, one large ones, and one thousands of waiting requests."""
    loop = Loop(Placement(0, 0, 8))
    for _ in range(3000):
        loop.ask(QueueRequest("flood", work=10.0))
    backlogged(loop, [QueueRequest("small", work=1.0), QueueRequest("large", work=100.0)], 3000, deep=30)
    assert jain([loop.had[team] for team in ("flood", "small", "large")]) > 0.99


def test_an_idle_team_gains_no_credit_and_a_lone_team_owes_nothing() -> None:
    loop = Loop(Placement(0, 0, 1))
    for _ in range(500):
        loop.ask(QueueRequest("busy", work=10.0))
    for _ in range(400):
        loop.start()
        loop.end()
    for _ in range(20):
        loop.ask(QueueRequest("late", work=10.0))
    before = len(loop.order)
    for _ in range(20):
        loop.start()
        loop.end()
    late = loop.order[before:].count("late")
    assert 9 <= late <= 11, loop.order[before:]


def test_a_quiet_teams_request_comes_first_in_a_flood() -> None:
    """While 200 requests of a team wait, two of another team get the next free places."""
    loop = Loop(Placement(0, 0, 4))
    for _ in range(200):
        loop.ask(QueueRequest("flood", work=30.0))
    loop.start()
    loop.ask(QueueRequest("quiet", work=30.0))
    loop.ask(QueueRequest("quiet", work=30.0))
    for _ in range(4):
        loop.end()
        loop.start()
    assert loop.order[4:].count("quiet") == 2


def test_keys_share_equally_within_a_team() -> None:
    loop = Loop(Placement(0, 0, 2))
    for _ in range(1000):
        loop.ask(QueueRequest("team", "script", work=5.0))
    backlogged(loop, [QueueRequest("team", "app", work=5.0), QueueRequest("other", "k", work=5.0)], 600, deep=3)
    keys = [loop.claims[str(n)].key for n in range(len(loop.claims)) if str(n) not in loop.policy.line]
    assert abs(loop.had["team"] - loop.had["other"]) <= 20
    assert abs(keys.count("script") - keys.count("app")) <= 3


def test_the_earliest_deadline_of_a_key_comes_first_without_starving_others() -> None:
    policy = Placement(0, 0, 1)
    policy.enqueue("first", None, 0.0)
    policy.enqueue("none", None, 1.0)
    policy.enqueue("late", None, 2.0, QueueRequest(due=300.0))
    policy.enqueue("soon", None, 3.0, QueueRequest(due=30.0))
    policy.enqueue("never", None, 4.0, QueueRequest(due=1e6))
    order: list[str] = []
    for now in (5.0, 6.0, 7.0, 8.0, 9.0):
        order += policy.decide(now).start
        policy.finish(order[-1], now)
    assert order == ["soon", "late", "first", "none", "never"]


def test_work_lost_with_an_engine_is_credited_again() -> None:
    """Two teams are level when the engine dies with a request of one, which is not charged for it."""
    loop = Loop(Placement(0, 0, 1))
    for _ in range(4):
        loop.ask(QueueRequest("a", work=40.0))
        loop.ask(QueueRequest("b", work=1.0))
    (lost,) = loop.start()
    assert loop.claims[lost].team == "a"
    assert loop.policy.reset() == [lost]
    loop.running.clear()
    loop.start()
    assert loop.order[-1] == "a"


def test_the_memory_of_a_queue_that_is_never_empty_is_bounded() -> None:
    """Each request is charged too much at first and then credited, so that its team moves ahead again."""
    loop = Loop(Placement(0, 0, 4), lambda claim: claim.work / 2)
    backlogged(loop, [QueueRequest(team, key, work=10.0) for team in "ab" for key in "kl"], 2000, 3)
    group = loop.policy.line._teams[ServiceClass.INTERACTIVE]
    assert group.waiting is not None
    for order in (group.waiting, *(team.keys.waiting for team in group.waiting)):
        assert order is not None
        assert len(order._heap) < 100


def test_tokens_are_charged_while_a_request_runs() -> None:
    """The team of a request that was estimated as small, but keeps streaming, does not come first."""
    policy = Placement(0, 0, 2)
    for number in range(4):
        policy.enqueue(f"a{number}", None, 0.0, QueueRequest("a", work=1.0))
        policy.enqueue(f"b{number}", None, 0.0, QueueRequest("b", work=10.0))
    assert policy.decide(0.0).start == ("a0", "b0")
    policy.progress("a0", 500.0)
    for number in range(1, 4):
        policy.finish(f"b{number - 1}", 0.0, 10.0)
        assert policy.decide(0.0).start == (f"b{number}",)
    policy.progress("gone", 5.0)
    policy.finish("a0", 0.0, 500.0)
    assert policy.decide(0.0).start == ("a1",)


@pytest.mark.parametrize("teams", [20])
@pytest.mark.long
def test_twenty_teams_with_an_adapter_each_share_few_places_fairly(teams: int) -> None:
    """Jain's index of the work is high, although the engine has places for a few of the adapters."""
    from tests.unit.scheduling.simulator import Arrival, Witness, simulate
    from tests.unit.scheduling.test_placement import NAMES

    policy = Placement(4, 20, 16, max_overtake=0.5)
    claims = {NAMES[number]: QueueRequest(f"team{number}", work=10.0) for number in range(teams)}
    trace = [Arrival(0.0, digest, 0.1, claim) for digest, claim in claims.items() for _ in range(8)]
    done = simulate(
        Witness(policy, 4, 20, 16), trace, stage=0.03, place=0.01, until=60.0,
        after=lambda request, digest, now: Arrival(now, digest, 0.1, claims[str(digest)]),
    )  # fmt: skip
    by_team = [float(sum(served.arrival.claim is claim for served in done)) for claim in claims.values()]
    assert jain(by_team) >= 0.95
    swaps = sum(before.arrival.digest != after.arrival.digest for before, after in pairwise(done))
    assert swaps < len(done), "requests of an adapter are still grouped"
