"""The choice of a replica: the table of `routing.replicas`, and properties."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.replicas import (
    PREFIX_BYTES,
    HomeKeys,
    ReplicaState,
    choose,
    choose_near,
    keys_of,
    prefix_of,
)


def idle(count: int) -> list[ReplicaState]:
    return [ReplicaState(number, 0.0, 0.0) for number in range(1, count + 1)]


def home(replicas: list[ReplicaState], keys: HomeKeys) -> int:
    """Return the position of the replica that gets a request while nothing runs."""
    states = [replica._replace(start=0.0, work=0.0, adapter=1.0 if keys.adapter else 0.0) for replica in replicas]
    return choose(states, keys, 0.0)[0]


def key(number: int) -> HomeKeys:
    return keys_of(None, "", f"adapter {number}")


ADAPTER = key(7)
PROMPT = HomeKeys(prompt=ADAPTER.adapter)


def test_one_replica_gets_everything() -> None:
    assert choose([ReplicaState(3, 9.0, 1e9, 9.0)], HomeKeys(PROMPT.prompt, ADAPTER.adapter), 5.0)[0] == 0


def test_without_keys_the_lowest_cost_decides_and_then_the_least_work() -> None:
    replicas = [ReplicaState(1, 0.2, 5.0), ReplicaState(2, 0.1, 9.0), ReplicaState(3, 0.1, 8.0)]
    assert choose(replicas, HomeKeys(), 0.3) == (2, "soonest")


def test_an_adapter_placed_on_another_replica_stays_there() -> None:
    replicas = idle(2)
    at = home(replicas, ADAPTER)
    states = [one._replace(adapter=0.5 if i == at else 0.0) for i, one in enumerate(replicas)]
    assert choose(states, ADAPTER, 0.0) == (1 - at, "soonest")


def test_a_home_is_kept_while_it_costs_less_than_leaving() -> None:
    replicas = idle(2)
    at = home(replicas, PROMPT)
    for start, expected in (
        (0.55, (at, "prompt")),
        (0.65, (1 - at, "soonest")),
    ):  # the other replica reads the prompt in 0.3 s, which counts twice
        states = [one._replace(start=start if i == at else 0.0, work=1.0) for i, one in enumerate(replicas)]
        assert choose(states, PROMPT, 0.3) == expected


def test_a_home_with_too_much_work_is_left_once_requests_wait() -> None:
    replicas = idle(4)
    at = home(replicas, PROMPT)
    for start, work, stays in ((0.0, 9.0, True), (0.1, 9.0, False), (0.1, 1.3, True)):
        states = [one._replace(work=work if i == at else 1.0, start=start) for i, one in enumerate(replicas)]
        position, reason = choose(states, PROMPT, 0.3)
        assert (position == at, reason) == (stays, "prompt" if stays else "busy")


def test_the_cheaper_of_two_homes_is_chosen() -> None:
    replicas = idle(8)
    for prompt in range(100):
        keys = HomeKeys(key(prompt).adapter, ADAPTER.adapter)
        a, p = home(replicas, ADAPTER), home(replicas, HomeKeys(keys.prompt))
        if a != p:
            break
    states = [replica._replace(adapter=0.0 if i == a else 0.5) for i, replica in enumerate(replicas)]
    assert choose(states, keys, 0.1) == (a, "adapter")  # the adapter costs more than the prompt
    assert choose(states, keys, 0.9) == (p, "prompt")


def test_a_home_is_left_only_for_more_than_the_adapters_cost_on_another() -> None:
    for start, expected in ((0.9, (0, "adapter")), (1.1, (1, "soonest"))):
        states = [ReplicaState(0, start, 1.0), ReplicaState(0, 0.0, 1.0, adapter=0.5)]
        assert choose_near(states, 0, -1, prefill=0.0) == expected


@pytest.mark.parametrize("home", [0, 1])
def test_the_adapters_home_is_chosen_if_it_costs_less_at_any_position(home: int) -> None:
    states = [ReplicaState(0, 0.0 if at == home else 1.5, 1.0) for at in range(2)]
    assert choose_near(states, home, 1 - home, prefill=1.0) == (home, "adapter")


@pytest.mark.parametrize("warm", [0, 1])
def test_the_prompts_home_is_chosen_only_if_it_costs_less_at_any_position(warm: int) -> None:
    for prefill, expected in ((0.5, (1 - warm, "adapter")), (0.6, (warm, "prompt"))):
        states = [ReplicaState(0, 0.0, 1.0, adapter=0.5 if at == warm else 0.0) for at in range(2)]
        assert choose_near(states, 1 - warm, warm, prefill) == expected


def test_a_home_is_kept_if_leaving_saves_no_more_than_it_loses() -> None:
    states = [ReplicaState(0, 0.5, 1.0), ReplicaState(0, 0.0, 1.0, adapter=0.25)]
    assert choose_near(states, 0, -1, prefill=0.0) == (0, "adapter")  # saves 0.25 s, loses 0.25 s


def test_a_home_is_busy_above_one_and_a_quarter_times_the_mean_work() -> None:
    for work, expected in ((50.0, (0, "prompt")), (51.0, (1, "busy"))):
        states = [ReplicaState(0, 0.1, work), ReplicaState(0, 0.1, 30.0)]
        assert choose_near(states, -1, 0, prefill=0.3) == expected


def test_a_busy_home_is_not_left_for_a_later_turn() -> None:
    states = [ReplicaState(0, 0.1, 9.0), ReplicaState(0, 0.2, 1.0), ReplicaState(0, 0.1, 2.0)]
    assert choose_near(states, -1, 0, prefill=0.3) == (2, "busy")
    assert choose_near(states[:2], -1, 0, prefill=0.3) == (0, "prompt")


@given(
    st.lists(
        st.builds(
            ReplicaState,
            st.integers(1, 16),
            st.sampled_from([0.0, 0.1, 1.0, 30.0]),
            st.floats(0, 1e6),
            st.sampled_from([0.0, 0.2, 2.0]),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda one: one.number,
    ),
    st.builds(HomeKeys, *[st.none() | st.lists(st.integers(0, 65535), min_size=17, max_size=17).map(tuple)] * 2),
    st.sampled_from([0.0, 0.05, 3.0]),
)
def test_a_home_costs_at_most_twice_what_leaving_it_would(
    replicas: list[ReplicaState], keys: HomeKeys, prefill: float
) -> None:
    """The wait exceeds that on another replica only by the adapter and the prompt that the home has."""
    one = replicas[choose(replicas, keys, prefill)[0]]
    best = min(other.start + other.adapter for other in replicas)
    assert one.start + one.adapter <= best + 2 * (prefill + max(other.adapter for other in replicas)) + 1e-9


@given(st.integers(2, 16), st.integers())
def test_a_removed_replica_moves_only_its_own_keys(count: int, number: int) -> None:
    replicas, keys = idle(count), key(number)
    before = replicas[home(replicas, keys)]
    for gone in replicas:
        left = [one for one in replicas if one is not gone]
        if gone is not before:
            assert left[home(left, keys)] is before


def test_homes_are_spread_evenly_and_the_same_in_every_process() -> None:
    script = (
        "from routing.replicas import *\n"
        "states = [ReplicaState(n, 0.0, 0.0, 1.0) for n in range(1, 5)]\n"
        "print(*(choose(states, keys_of(None, '', f'sha256:{n:064x}'), 0.0)[0] for n in range(400)))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    places = outputs.pop().split()
    assert all(60 <= places.count(str(place)) <= 140 for place in range(4))


def test_a_key_depends_on_team_adapter_and_beginning_of_the_prompt() -> None:
    long = {"messages": [{"role": "system", "content": "x" * 2000}, {"role": "user", "content": "one"}]}
    other = {"messages": [{"role": "system", "content": "x" * 2000}, {"role": "user", "content": "two"}]}
    mine = keys_of(long, "a", "d")
    assert mine == keys_of(other, "a", "d")
    assert mine.prompt not in (
        keys_of(long, "b", "d").prompt,
        keys_of(long, "a", "e").prompt,
        keys_of({}, "a", "d").prompt,
    )
    assert keys_of(None, "a", None) == HomeKeys()


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": "a"}, {"prompt": [1, 2, 3] * 900}, {"input": [["b"], "c"]}, {"messages": {"x": 1}, "system": "s"}],
)
def test_a_prefix_is_short_for_any_body(body: dict[str, object]) -> None:
    assert len(prefix_of(body)) <= PREFIX_BYTES or not isinstance(body.get("prompt"), list)
