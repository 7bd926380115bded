"""A bomb never delays another request's token by more than one step, whether that one is constrained or not.

ROUNDHOUSE_BOMB_ROUNDS sets how often all bombs are sent (default 1). Each round prints the longest run of missed steps.
"""

import asyncio
import os
from typing import Any

import pytest

from registry.errors import RoundhouseError
from tests.contract.chat.bombs import ATTACKS, TOOLS, guided
from tests.contract.chat.nasty import CHAT, HELLO, TEXT
from tests.contract.chat_engine.bench import Bench
from tests.contract.chat_engine.steps import Steps

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(24 * 3600)]
ROUNDS = int(os.environ.get("ROUNDHOUSE_BOMB_ROUNDS", "1"))
AT_ONCE = 4
CONTROL = {"prompt": "on and on", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
KINDS: dict[str, dict[str, Any]] = {"free": {}, "bound": guided(regex="[a-z ]{1,400}")}


async def test_no_stream_misses_more_than_one_step_in_a_row(bench: Bench) -> None:
    for round_ in range(ROUNDS):
        over, longest = asyncio.Event(), 0

        async def stream(kind: str, over: asyncio.Event = over, round_: int = round_) -> list[str]:
            """Send one stream after the other until all bombs are answered; return their names."""
            names: list[str] = []
            while not over.is_set():
                names.append(f"cmpl-{kind}-{round_}-{len(names)}-")
                await bench.ask(TEXT, {**CONTROL, **KINDS[kind], "request_id": names[-1].removeprefix("cmpl-")})
            return names

        with Steps(bench) as steps:
            streams = [asyncio.create_task(stream(kind)) for kind in KINDS]
            turn = asyncio.Semaphore(AT_ONCE)

            async def bomb(attack: dict[str, Any], turn: asyncio.Semaphore = turn) -> int:
                async with turn:
                    try:
                        return (await bench.ask(CHAT, {"messages": HELLO, "max_tokens": 16, **attack})).status
                    except RoundhouseError as error:
                        return error.status

            statuses = await asyncio.gather(*[bomb(attack) for attack in (ATTACKS | TOOLS).values()])
            over.set()
            names = [name for names in await asyncio.gather(*streams) for name in names]
        for name in names:
            longest = max(longest, steps.missed(name))
        print(f"round {round_}: {len(steps.all)} steps, {len(names)} streams; longest row missed: {longest}")
        assert set(statuses) <= {200, 400, 429, 503}
        assert longest <= 1
    assert bench.unfinished() == 0
