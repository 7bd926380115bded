"""Fair turns between owners, with scripted calls, ends and cancellations."""

import asyncio
from collections.abc import Iterator

import pytest

from registry.base.turns import PORTION, FairTurns, ListBuilder, NoTurn


class Calls:
    """Calls that keep their turn until `end`."""

    def __init__(self, count: int = 1) -> None:
        self.turns, self.began = FairTurns(count), list[str]()
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        """Begin calls with names such as a1, whose first letter is the owner."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
        await self.settle()

    async def _run(self, name: str) -> None:
        async with self.turns.take(name[0]):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_owners_take_turns_and_each_has_its_own_order() -> None:
    calls = Calls()
    await calls.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert calls.began == ["a1"]
    for name in ("a1", "a2", "b1", "c1", "a3", "b2"):
        await calls.end(name)
    assert calls.began == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_a_late_call_waits_for_at_most_one_call_of_each_other_owner() -> None:
    calls = Calls()
    await calls.begin("a1", *(f"a{n}" for n in range(2, 100)))
    await calls.end("a1")
    await calls.begin("b1")
    await calls.end("a2")
    assert calls.began == ["a1", "a2", "a3"], "the next turn was assigned before"
    await calls.end("a3")
    assert calls.began[-1] == "b1"


async def test_a_call_waits_no_longer_than_its_limit_and_leaves_no_turn_behind() -> None:
    calls = Calls()
    await calls.begin("a1")
    with pytest.raises(NoTurn):
        async with calls.turns.take("b", within=0.0):
            calls.began.append("b1")
    await calls.begin("c1")
    await calls.end("a1")
    assert calls.began == ["a1", "c1"]
    await calls.end("c1")
    async with calls.turns.take("b", within=0.0):
        calls.began.append("b2")
    assert calls.began == ["a1", "c1", "b2"]


async def test_a_timeout_inside_a_turn_is_not_a_missing_turn() -> None:
    with pytest.raises(TimeoutError):
        async with FairTurns().take("a", within=60.0):
            raise TimeoutError


async def test_as_many_calls_run_as_there_are_turns() -> None:
    calls = Calls(2)
    await calls.begin("a1", "a2", "a3", "b1")
    assert calls.began == ["a1", "a2"]
    await calls.end("a2")
    await calls.end("a1")
    assert calls.began == ["a1", "a2", "a3", "b1"]
    for name in ("a3", "b1"):
        await calls.end(name)
    await calls.begin("c1", "c2", "c3")
    assert calls.began[4:] == ["c1", "c2"], "both turns were returned"


async def test_a_cancelled_call_is_skipped_and_loses_no_turn() -> None:
    calls = Calls()
    await calls.begin("a1", "a2", "b1")
    calls.tasks["a2"].cancel()
    await calls.end("a1")
    assert calls.began == ["a1", "b1"]
    await calls.begin("c1", "d1")
    calls._ends["b1"].set()
    await asyncio.sleep(0)
    calls.tasks["c1"].cancel()  # it has its turn, but has not begun
    await calls.settle()
    assert calls.began == ["a1", "b1", "d1"]
    await calls.end("d1")
    await calls.begin("e1")
    assert calls.began[-1] == "e1"


async def test_long_lists_are_built_in_portions_one_at_a_time() -> None:
    """Otherwise several lists that one team requests at once would block every stream."""
    builder, built = ListBuilder(), list[str]()

    def entries(owner: str, count: int) -> Iterator[int]:
        for number in range(count):
            built.append(owner)
            yield number

    calls = [asyncio.create_task(builder.build(owner, entries(owner, 3 * PORTION))) for owner in "aaaab"]
    most = 0
    while not all(call.done() for call in calls):
        before = len(built)
        await asyncio.sleep(0)
        most = max(most, len(built) - before)
    assert most == PORTION
    assert [call.result() for call in calls] == 5 * [list(range(3 * PORTION))]
    assert "".join(built[:: 3 * PORTION]) == "aabaa"
    assert await builder.build("a", ()) == []
