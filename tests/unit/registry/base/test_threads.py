"""Calls that wait for a hub have threads of their own."""

import asyncio
import threading

import pytest

from registry.base.threads import Threads
from registry.errors import QueueFull
from tests.eventually import PATIENCE


async def test_a_hub_that_does_not_answer_holds_no_one_elses_thread() -> None:
    threads, answers = Threads("hub", count=2, waiting=30), threading.Event()
    calls = [asyncio.create_task(threads.run(answers.wait, PATIENCE)) for _ in range(32)]
    await asyncio.sleep(0)
    try:
        files = [asyncio.to_thread(int, "7") for _ in range(64)]  # as an upload writes
        assert await asyncio.wait_for(asyncio.gather(*files), PATIENCE) == [7] * 64
        with pytest.raises(QueueFull, match="32 calls to the hub"):
            await threads.run(int)
        calls[-1].cancel()  # it had not begun
        await asyncio.wait([calls[-1]])
        last = asyncio.create_task(threads.run(int, "8"))
    finally:
        answers.set()
    assert await asyncio.gather(*calls[:-1]) == [True] * 31
    assert await last == 8
    assert await threads.run(int, "9") == 9


async def test_an_error_comes_through_and_gives_the_place_back() -> None:
    threads = Threads("hub", count=1, waiting=0)
    for _ in range(3):
        with pytest.raises(ValueError, match="x"):
            await threads.run(int, "x")
