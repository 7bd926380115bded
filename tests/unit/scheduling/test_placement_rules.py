"""Each numbered rule of runtime.scheduling.placement."""

import pytest

from registry.errors import Conflict
from runtime.scheduling.placement import Placement, PlacementPlan

A, B, C, D = "sha256:a", "sha256:b", "sha256:c", "sha256:d"


def put(policy: Placement, *digests: str, now: float = 0.0) -> None:
    """Place adapters one after the other, by one request each."""
    for number, digest in enumerate(digests):
        policy.enqueue(f"put-{digest}", digest, now)
        settle(policy, now)
        policy.finish(f"put-{digest}", now + number * 0.001)


def settle(policy: Placement, now: float) -> list[PlacementPlan]:
    """Carry out plans at once until nothing is left to do, and return them."""
    plans = []
    while True:
        plan = policy.decide(now)
        plans.append(plan)
        for digest in plan.stage:
            policy.staged(digest)
        for digest, _ in plan.place:
            policy.placed(digest, now)
        if not (plan.stage or plan.place or plan.drop or plan.start):
            return plans


def started(plans: list[PlacementPlan]) -> list[str]:
    return [request for plan in plans for request in plan.start]


def test_rule_1_the_base_needs_no_place_and_requests_are_capped() -> None:
    policy = Placement(0, 0, 2)
    for request in "abc":
        policy.enqueue(request, None, 0.0)
    assert policy.decide(0.0).start == ("a", "b")
    policy.finish("a", 1.0)
    assert policy.decide(1.0).start == ("c",)


def test_rule_1_an_adapter_without_places_is_refused() -> None:
    with pytest.raises(Conflict, match="no adapter places"):
        Placement(0, 0, 2).enqueue("a", A, 0.0)


def test_rule_2_ready_requests_pass_blocked_ones_in_arrival_order() -> None:
    policy = Placement(1, 2, 8)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", B, 0.1)
    policy.enqueue("3", None, 0.2)
    policy.enqueue("4", A, 0.3)
    assert policy.decide(0.3).start == ("3", "4")


def test_rule_3_staging_starts_when_a_request_is_queued_oldest_first() -> None:
    policy = Placement(1, 4, 8, staging_at_once=2)
    for request, digest in enumerate((C, A, B)):
        policy.enqueue(str(request), digest, 0.0)
    assert policy.decide(0.0).stage == (C, A)
    policy.staged(C)
    assert policy.decide(0.0).stage == (B,)


def test_rule_4_the_host_tier_drops_the_least_recently_used_idle_adapter() -> None:
    policy = Placement(1, 3, 8)
    put(policy, A, B, C)
    assert [policy.status(d).tier for d in (A, B, C)] == ["host", "host", "device"]
    policy.enqueue("1", A, 1.0)
    assert "1" in started(settle(policy, 1.0))
    policy.finish("1", 1.1)
    policy.enqueue("2", D, 2.0)
    assert policy.decide(2.0).drop == (B,)


def test_rule_4_a_staged_adapter_is_dropped_for_an_older_request() -> None:
    policy = Placement(1, 2, 8, max_overtake=100.0)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", B, 1.0)
    settle(policy, 1.0)
    policy.cancel("2")
    policy.enqueue("3", C, 2.0)
    policy.enqueue("4", B, 3.0)
    plan = policy.decide(3.0)
    assert plan.drop == (B,)
    assert plan.stage == (C,)


def test_rule_5_the_least_recently_used_idle_place_is_taken() -> None:
    policy = Placement(2, 4, 8)
    put(policy, A, B)
    policy.enqueue("1", A, 1.0)
    settle(policy, 1.0)
    policy.finish("1", 2.0)
    policy.enqueue("2", C, 3.0)
    assert [plan.place for plan in settle(policy, 3.0) if plan.place] == [((C, B),)]


def test_rule_5_the_end_of_a_request_counts_as_use() -> None:
    policy = Placement(2, 4, 8)
    put(policy, A, B)
    for number, digest in enumerate((A, B), start=1):
        policy.enqueue(str(number), digest, float(number))
        settle(policy, float(number))
    policy.finish("2", 3.0)
    policy.finish("1", 4.0)
    policy.enqueue("3", C, 5.0)
    assert [plan.place for plan in settle(policy, 5.0) if plan.place] == [((C, B),)]


def test_rule_6_a_place_closes_for_an_overdue_request_and_opens_when_that_is_cancelled() -> None:
    policy = Placement(1, 3, 8, max_overtake=1.0)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", B, 0.5)
    assert settle(policy, 0.5)[-1].wake_at == 1.5
    policy.enqueue("3", A, 1.4)
    assert started(settle(policy, 1.4)) == ["3"]
    policy.enqueue("4", A, 1.6)
    assert started(settle(policy, 1.6)) == []
    policy.cancel("2")
    assert started(settle(policy, 1.7)) == ["4"]


def test_rule_6_a_closed_place_goes_to_the_request_that_closed_it() -> None:
    policy = Placement(1, 3, 8, max_overtake=1.0)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", B, 0.5)
    settle(policy, 0.5)
    policy.enqueue("3", A, 1.5)
    assert started(settle(policy, 1.5)) == []
    policy.finish("1", 3.0)
    plans = settle(policy, 3.0)
    assert [plan.place for plan in plans if plan.place] == [((B, A),)]
    assert started(plans) == ["2"]


def test_rule_6_an_older_waiting_request_keeps_its_place() -> None:
    policy = Placement(1, 3, 1, max_overtake=1.0)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", A, 0.1)
    policy.enqueue("3", B, 0.2)
    settle(policy, 5.0)
    policy.finish("1", 6.0)
    assert started(settle(policy, 6.0)) == ["2"]


def test_rule_7_pinned_adapters_stay_and_one_place_is_left_unpinned() -> None:
    policy = Placement(2, 4, 8, max_overtake=0.0)
    put(policy, A, B)
    policy.pin(A)
    policy.pin(A)
    with pytest.raises(Conflict, match="1 of 2"):
        policy.pin(B)
    policy.enqueue("1", C, 5.0)
    policy.enqueue("2", D, 5.0)
    settle(policy, 5.0)
    assert policy.status(A).tier == "device"
    policy.finish("1", 6.0)
    assert started(settle(policy, 6.0)) == ["2"]
    assert policy.status(A) == policy.status(A).__class__("device", True, 0, 0, 0, 1, 0)


def test_rule_7_an_unpinned_or_removed_adapter_gives_its_place_to_others() -> None:
    policy = Placement(2, 4, 8)
    put(policy, A, B)
    policy.pin(A)
    policy.unpin(A)
    policy.pin(B)
    put(policy, C)
    assert set(policy.resident()) == {B, C}
    policy.forget(B)
    settle(policy, 1.0)
    assert not policy.status(B).pinned
    policy.pin(C)


def test_rule_7_with_more_pins_than_places_the_first_ones_apply() -> None:
    policy = Placement(3, 4, 8)
    for digest in (A, B):
        policy.pin(digest)
    policy.resize(2, 4, 8)
    policy.reset()
    assert [policy.status(digest).pinned for digest in (A, B)] == [True, False]
    put(policy, C, D)
    assert set(policy.resident()) == {A, D}, "one place is left for other adapters"
    policy.resize(3, 4, 8)
    policy.reset()
    assert [policy.status(digest).pinned for digest in (A, B)] == [True, True]


def test_rule_7_a_pinned_adapter_is_placed_when_there_is_room() -> None:
    policy = Placement(2, 3, 8)
    policy.pin(A)
    settle(policy, 0.0)
    assert policy.status(A).tier == "device"


def test_rule_7_a_pinned_adapter_that_failed_waits_for_a_request() -> None:
    policy = Placement(2, 3, 8)
    policy.pin(A)
    assert policy.decide(0.0).stage == (A,)
    policy.failed(A)
    assert policy.decide(0.0) == PlacementPlan(drop=(A,))
    assert policy.decide(0.0) == PlacementPlan()
    policy.enqueue("1", A, 1.0)
    assert started(settle(policy, 1.0)) == ["1"]
    assert policy.status(A).pinned


def test_rule_7_a_new_engine_tries_a_pinned_adapter_that_failed_again() -> None:
    policy = Placement(2, 3, 8)
    policy.pin(A)
    policy.decide(0.0)
    policy.failed(A)
    policy.reset()
    assert policy.decide(1.0).stage == (A,)


def test_a_new_engine_has_all_its_places_although_requests_held_a_failed_one() -> None:
    policy = Placement(1, 3, 8)
    policy.enqueue("1", A, 0.0)
    policy.staged(*policy.decide(0.0).stage)
    policy.decide(0.0)
    policy.admit(A, 0.0)
    assert policy.decide(0.0).start == ("1",)
    policy.failed(A)
    policy.reset()
    put(policy, B, now=1.0)
    assert policy.resident() == (B,)


def test_rule_8_a_forgotten_adapter_is_dropped_when_its_last_request_ends() -> None:
    policy = Placement(2, 3, 8)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.forget(A)
    assert policy.decide(0.0).drop == ()
    policy.finish("1", 1.0)
    assert policy.decide(1.0).drop == (A,)
    assert policy.status(A).tier == "disk"


def test_rule_8_an_adapter_that_is_registered_again_stays() -> None:
    policy = Placement(2, 3, 8)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.forget(A)
    policy.enqueue("2", A, 0.5)
    settle(policy, 0.5)
    policy.finish("1", 1.0)
    policy.finish("2", 1.0)
    assert policy.decide(1.0).drop == ()


@pytest.mark.parametrize("stage", ["staging", "placing"])
def test_a_failed_adapter_ends_its_requests_and_nothing_else(stage: str) -> None:
    policy = Placement(1, 3, 8)
    put(policy, B)
    policy.enqueue("1", A, 1.0)
    policy.enqueue("2", A, 1.0)
    policy.decide(1.0)
    if stage == "placing":
        policy.staged(A)
        assert policy.decide(1.0).place == ((A, B),)
    assert policy.failed(A) == ["1", "2"]
    assert policy.decide(1.0).drop == (A,)
    policy.enqueue("3", B, 2.0)
    assert started(settle(policy, 2.0)) == ["3"]
    policy.enqueue("4", A, 3.0)
    policy.finish("3", 3.0)
    assert started(settle(policy, 3.0)) == ["4"]


def test_a_reset_keeps_waiting_requests_and_places_their_adapters_again() -> None:
    policy = Placement(1, 3, 8)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", B, 0.1)
    assert policy.reset() == ["1"]
    policy.finish("1", 0.2)
    assert started(settle(policy, 0.2)) == ["2"]


def test_hits_and_misses_are_counted() -> None:
    policy = Placement(1, 3, 8)
    policy.enqueue("1", A, 0.0)
    settle(policy, 0.0)
    policy.enqueue("2", A, 0.1)
    settle(policy, 0.1)
    status = policy.status(A)
    assert (status.hits, status.misses, status.running) == (1, 1, 2)


def test_an_id_cannot_be_used_twice() -> None:
    policy = Placement(1, 1, 8)
    policy.enqueue("1", None, 0.0)
    with pytest.raises(ValueError, match="already waiting"):
        policy.enqueue("1", None, 0.0)
    policy.decide(0.0)
    with pytest.raises(ValueError, match="already running"):
        policy.enqueue("1", None, 0.0)
