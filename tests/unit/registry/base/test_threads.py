"""Blocking calls have threads of their own, which teams share fairly."""

import asyncio
import threading

import pytest

from registry.base.threads import Threads
from registry.errors import QueueFull
from tests.eventually import PATIENCE


async def test_a_hub_that_does_not_answer_blocks_no_other_threads() -> None:
    threads, answers = Threads("hub", count=2, waiting=30), threading.Event()
    calls = [asyncio.create_task(threads.run(answers.wait, PATIENCE)) for _ in range(32)]
    await asyncio.sleep(0)
    try:
        files = [asyncio.to_thread(int, "7") for _ in range(64)]  # like writes of an upload
        assert await asyncio.wait_for(asyncio.gather(*files), PATIENCE) == [7] * 64
        with pytest.raises(QueueFull, match="32 calls to the hub"):
            await threads.run(int)
        calls[-1].cancel()  # it has not started
        await asyncio.wait([calls[-1]])
        last = asyncio.create_task(threads.run(int, "8"))
    finally:
        answers.set()
    assert await asyncio.gather(*calls[:-1]) == [True] * 31
    assert await last == 8
    assert await threads.run(int, "9") == 9


async def test_an_error_is_raised_and_frees_the_thread() -> None:
    threads = Threads("hub", count=1, waiting=0)
    for _ in range(3):
        with pytest.raises(ValueError, match="x"):
            await threads.run(int, "x")


async def test_a_team_with_many_calls_does_not_block_other_teams() -> None:
    threads, gate, order = Threads("database", count=2, waiting=30), threading.Semaphore(0), list[str]()

    def work(name: str) -> None:
        gate.acquire(timeout=PATIENCE)
        order.append(name)

    theirs = [asyncio.create_task(threads.run_for("a", work, "a")) for _ in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="32 calls to the database"):
        await threads.run_for("a", int)
    ours = [asyncio.create_task(threads.run_for(team, work, team)) for team in ("b", "")]
    await asyncio.sleep(0)
    gate.release(5)  # two running calls, the longest waiting one, and the first of each other team
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*ours)
    gate.release(len(theirs))
    await asyncio.gather(*theirs)
    assert {"b", ""} <= set(order[:5])


async def test_one_team_does_not_get_the_last_thread() -> None:
    threads, answers = Threads("hub", count=2, each=1), threading.Event()
    stuck = [asyncio.create_task(threads.run_for("a", answers.wait, PATIENCE)) for _ in range(3)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(PATIENCE / 2):
            assert await threads.run_for("b", int, "7") == 7
    finally:
        answers.set()
    assert await asyncio.gather(*stuck) == [True] * 3


async def test_calls_cancelled_before_their_turn_leave_nothing_behind() -> None:
    threads, answers = Threads("hub", count=1, waiting=1), threading.Event()
    stuck = asyncio.create_task(threads.run_for("a", answers.wait, PATIENCE))
    await asyncio.sleep(0)
    for _ in range(5):
        call = asyncio.create_task(threads.run_for("a", int))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    assert not threads._waiting
    answers.set()
    assert await stuck
    assert await threads.run_for("a", int, "7") == 7
    answers.clear()
    calls = [asyncio.create_task(threads.run_for("a", answers.wait, PATIENCE)) for _ in range(2)]
    await asyncio.sleep(0)
    try:
        with pytest.raises(QueueFull, match="2 calls to the hub"):
            await threads.run_for("a", int)
    finally:
        answers.set()
    assert await asyncio.gather(*calls) == [True] * 2
