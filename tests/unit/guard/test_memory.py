"""Which bodies give way to others: properties of the policy, with a scripted clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import QueueFull
from runtime.http.guard.memory import SHARES, Body, BodyMemory, Group, Owner, choose_victims, owners_of
from tenants.caller import ANONYMOUS, EVERYBODY, VISITOR, Caller

MOST, SLACK, RATE = 1600, 2.0, 100.0
callers = st.sampled_from([EVERYBODY, ANONYMOUS, *(Caller(team, f"{team}{n}") for team in "ab" for n in "12")])
pieces = st.lists(
    st.tuples(
        st.integers(0, 9), callers, st.sampled_from(["x", "y"]), st.integers(0, 400), st.floats(0, 5), st.booleans()
    ),
    max_size=60,
)


def body(caller: Caller = EVERYBODY, address: str = "x") -> Body:
    return Body(owners_of(caller, address), SLACK)


@given(pieces)
def test_every_bound_holds_and_only_stalled_bodies_give_way(
    script: list[tuple[int, Caller, str, int, float, bool]],
) -> None:
    memory, now = BodyMemory(MOST, 10), 0.0
    bodies: dict[int, Body] = {}
    for number, caller, address, size, pause, is_whole in script:
        now += pause
        one = bodies.setdefault(number, body(caller, address))
        before = {other: other.size for other in bodies.values()}
        stalled = {other for other in bodies.values() if other.stalls_at <= now} - {one}
        try:
            victims = memory.add(one, size, now)
        except QueueFull:
            assert {other: other.size for other in bodies.values()} == before, "a refusal ends no other body"
            owners = [owner for owner in one.owners if over(owner, before, size)]
            assert any(over(owner, {o: n for o, n in before.items() if o not in stalled}, size) for owner in owners)
            continue
        assert set(victims) <= stalled
        assert all(victim.size == 0 and before[victim] > 0 for victim in victims)
        bodies = {n: other for n, other in bodies.items() if other not in victims}
        if not is_whole:
            one.await_piece(now)
        held = {other: other.size for other in bodies.values()}
        assert memory.held == sum(held.values())
        assert not any(over(owner, held, 0) for other in bodies.values() for owner in other.owners)
        if is_whole:
            one.stalls_at = float("inf")


def over(owner: Owner, held: dict[Body, int], size: int) -> bool:
    bound = max(int(MOST * SHARES[owner[0]]), 10)
    return sum(count for other, count in held.items() if owner in other.owners) + size > bound


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99)), max_size=12), st.integers(1, 40))
def test_the_longest_stalled_go_first_and_no_more_than_needed(sizes: list[tuple[int, int]], excess: int) -> None:
    stalled = [Body(((Group.ALL, ""),), 0, size, when) for size, when in sizes]
    victims = choose_victims({(Group.ALL, ""): excess}, stalled)
    if victims is None:
        assert sum(one.size for one in stalled) < excess
        return
    assert victims == sorted(stalled, key=lambda one: one.stalls_at)[: len(victims)]
    assert sum(one.size for one in victims) >= excess > sum(one.size for one in victims[:-1])


def test_one_key_cannot_fill_the_shared_memory() -> None:
    memory = BodyMemory(MOST, 10)
    first, second = Caller("a", "a1"), Caller("b", "b1")
    memory.add(body(first), MOST // 2, 0.0)
    with pytest.raises(QueueFull, match="of your key"):
        memory.add(body(first), 1, 0.0)
    assert memory.add(body(second, "y"), MOST // 2, 0.0) == []


def test_callers_without_a_key_share_a_sixteenth_or_a_teams_share_on_an_open_server() -> None:
    memory = BodyMemory(MOST, 10)
    memory.add(body(ANONYMOUS), MOST // 16, 0.0)
    with pytest.raises(QueueFull, match="without a key"):
        memory.add(body(ANONYMOUS, "y"), 1, 0.0)
    for caller in (EVERYBODY, VISITOR):
        assert (Group.TEAM, "default") in owners_of(caller, "x")


def test_a_rotated_key_has_the_share_of_its_predecessors() -> None:
    assert owners_of(Caller("a", "a2", line="a1"), "x") == owners_of(Caller("a", "a1"), "x")


def test_empty_bodies_at_the_same_time_end_in_any_order() -> None:
    memory, first, second = BodyMemory(MOST, 10), body(), body()
    for one in (first, second):
        memory.add(one, 0, 0.0)
    for one in (first, second):
        memory.remove(one)
    assert memory.held == 0


def test_a_body_that_ends_twice_leaves_nothing() -> None:
    """A body that gave way is removed again at the end of its request."""
    memory, one = BodyMemory(MOST, 10), body()
    memory.add(one, 5, 0.0)
    memory.remove(one)
    memory.remove(one)
    assert (memory.held, memory._held, memory._bodies) == (0, {}, set())


def test_a_stalled_body_under_no_full_bound_stays() -> None:
    memory, longest, own = BodyMemory(100, 10), body(Caller("b", "b1"), "y"), body(Caller("a", "a1"))
    for one, size, now in ((longest, 20, 0.0), (own, 50, 1.0)):
        memory.add(one, size, now)
        one.await_piece(now)
    assert memory.add(body(Caller("a", "a1"), "z"), 10, 100.0) == [own]
    assert longest.size == 20


def test_a_whole_body_never_gives_way() -> None:
    memory, whole = BodyMemory(MOST, MOST), body()
    memory.add(whole, MOST, 0.0)
    with pytest.raises(QueueFull):
        memory.add(body(), 1, 1e9)
    assert whole.size == MOST


@pytest.mark.parametrize(
    ("size", "pause", "is_stalled"),
    [(1, 0.5, True), (49, 0.5, True), (50, 0.5, False), (400, 2.1, True), (400, 1.9, False)],
    ids=["trickle", "under the rate", "at the rate", "fast and then silent", "fast with pauses"],
)
def test_progress_is_bytes_at_the_least_rate(size: int, pause: float, is_stalled: bool) -> None:
    one, now = body(), 0.0
    one.await_piece(now)
    for _ in range(300):
        now += pause
        stalled = one.stalls_at < now - 1e-6
        one.take_piece(size, now, RATE, SLACK)
        one.await_piece(now)
    assert stalled is is_stalled


def test_time_in_which_the_endpoint_does_not_read_does_not_count() -> None:
    """The endpoint works in that time."""
    one = body()
    one.await_piece(0.0)
    one.take_piece(0, 1.0, RATE, SLACK)
    one.await_piece(100.0)
    assert one.stalls_at == 101.0


def test_a_body_does_not_give_way_while_the_server_does_not_wait_for_its_client() -> None:
    memory, waited, other = BodyMemory(100, 10), body(address="x"), body(address="y")
    waited.await_piece(0.0)
    waited.take_piece(60, 1.0, RATE, SLACK)
    assert memory.add(waited, 60, 1.0) == []
    with pytest.raises(QueueFull):
        memory.add(other, 60, 100.0)
    waited.await_piece(100.0)
    assert memory.add(other, 60, 100.0 + SLACK) == [waited]


@pytest.mark.parametrize(
    ("caller", "size"),
    [(Caller("a", "a1"), 14), (Caller("a", "a3"), 19), (ANONYMOUS, 14)],
    ids=["key", "team", "no key"],
)
def test_no_key_team_or_caller_without_a_key_can_fill_the_memory_alone(caller: Caller, size: int) -> None:
    memory = BodyMemory(100, 10)
    memory.add(body(Caller("a", "a1"), "x"), 37, 0.0)
    memory.add(body(Caller("a", "a2"), "y"), 20, 0.0)
    with pytest.raises(QueueFull):
        memory.add(body(caller, "z"), size, 0.0)
    memory.add(body(Caller("b", "b1"), "w"), 43, 0.0)
    with pytest.raises(QueueFull):
        memory.add(body(Caller("c", "c1"), "v"), 1, 0.0)
