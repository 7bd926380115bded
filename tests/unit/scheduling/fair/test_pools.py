"""Pools: reserved parts of a model's places, and their maximum."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.scheduling.fair import Pool, Pools, QueueRequest
from runtime.scheduling.placement import Placement
from tests.unit.scheduling.test_placement import NAMES

POOLS = {"fast": Pool(reserved=2), "long": Pool(most=1)}


def started(policy: Placement, *pools: str) -> list[str]:
    for number, pool in enumerate(pools):
        policy.enqueue(f"{pool or 'none'}{number}", None, 0.0, QueueRequest(pool=pool))
    return list(policy.decide(0.0).start)


def test_a_long_prompt_never_takes_a_place_reserved_for_fast_ones() -> None:
    policy = Placement(0, 0, 4, pools=POOLS)
    assert started(policy, "long", "long", "", "", "") == ["long0", "none2"]
    assert started(policy, "fast", "fast", "fast") == ["fast0", "fast1"]
    policy.finish("none2", 0.0)
    assert policy.decide(0.0).start == ("none3",), "the third fast request has no priority over others"
    policy.finish("fast0", 0.0)
    assert policy.decide(0.0).start == ("fast2",)
    policy.finish("long0", 0.0)
    assert policy.decide(0.0).start == ("long1",)


def test_a_full_pool_does_not_close_an_adapters_place() -> None:
    policy = Placement(1, 3, 5, pools=POOLS, max_overtake=0.0)
    a, b = NAMES[:2]
    policy.enqueue("long", None, 0.0, QueueRequest(pool="long"))
    policy.enqueue("a", a, 0.0)
    assert policy.decide(0.0).start == ("long",)
    policy.staged(a)
    assert policy.decide(0.0).place == ((a, None),)
    policy.placed(a, 0.0)
    assert policy.decide(0.0).start == ("a",)
    policy.enqueue("late", b, 1.0, QueueRequest(pool="long"))
    policy.enqueue("again", a, 2.0)
    plan = policy.decide(3.0)
    assert (plan.start, plan.stage) == (("again",), ())


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=3),
    st.lists(st.tuples(st.booleans(), st.sampled_from(["", "a", "b", "c"])), max_size=80),
)
def test_reservations_and_bounds_hold_for_any_order(
    sizes: dict[str, tuple[int, int]], steps: list[tuple[bool, str]]
) -> None:
    table = {name: Pool(reserved, max(1, reserved, most)) for name, (reserved, most) in sizes.items()}
    pools, running = Pools(table), dict.fromkeys(["", "a", "b", "c"], 0)
    for starts, name in steps:
        if starts and name not in pools.closed(list(running), 8):
            pools.start(name)
            running[name] += 1
        elif not starts and running[name]:
            pools.end(name)
            running[name] -= 1
        assert sum(running.values()) <= 8
        for own, pool in table.items():
            assert running[own] <= (pool.most or 8)
            if running[own] < pool.reserved:
                assert own not in pools.closed([own], 8), "the reserved places are free"
