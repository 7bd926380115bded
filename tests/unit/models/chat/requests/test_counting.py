"""Calls that only count tokens run by turns of teams, and with pauses while other calls run."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from models.chat.engine import VllmEngine
from models.chat.requests.request import COUNTING
from models.chat.vllm.accounting import UsageMeter
from models.messages import Event, HttpCall, ResponseEnd, Usage


class Engine(VllmEngine):
    """Records the calls that vLLM would get, and answers them once their gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def _events(self, call: HttpCall, meter: UsageMeter) -> AsyncGenerator[Event, None]:
        self.running.append(call.team)
        self.begun.append(call.team)
        try:
            await self.gates[call.team].wait()
            yield ResponseEnd(Usage())
        finally:
            self.running.remove(call.team)

    def ask(self, team: str, path: str = "/tokenize") -> "asyncio.Task[list[Event]]":
        async def events() -> list[Event]:
            return [event async for event in self.call(HttpCall(path, b"{}", "m", "m", team=team))]

        self.gates.setdefault(team, asyncio.Event())
        return asyncio.create_task(events())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", sorted(COUNTING))
async def test_one_call_counts_at_a_time_and_teams_take_turns(path: str) -> None:
    engine = Engine()
    calls = [engine.ask("a", path), engine.ask("a", path), engine.ask("a", path), engine.ask("b", path)]
    await settle()
    assert engine.running == ["a"]
    for gate in engine.gates.values():
        gate.set()
    assert all([await call for call in calls])
    assert engine.begun == ["a", "a", "b", "a"]


async def test_chats_do_not_wait_for_calls_that_count() -> None:
    engine = Engine()
    counts = engine.ask("a")
    await settle()
    chats = [engine.ask("b", "/v1/chat/completions"), engine.ask("b", "/v1/completions")]
    await settle()
    assert engine.running == ["a", "b", "b"]
    for gate in engine.gates.values():
        gate.set()
    await asyncio.gather(counts, *chats)


async def test_a_cancelled_call_gives_its_turn_to_the_next() -> None:
    engine = Engine()
    first, second = engine.ask("a"), engine.ask("b")
    await settle()
    first.cancel()
    await settle()
    assert engine.running == ["b"]
    engine.gates["b"].set()
    assert await second


@pytest.mark.parametrize("others", [False, True])
async def test_the_next_call_pauses_for_the_last_ones_duration_while_others_run(
    others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, pauses = Engine(), list[float]()
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    first = engine.ask("a")
    await settle()
    now += 3.0
    engine.gates["a"].set()
    await first

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    if others:
        engine._running.add(cast(Any, object()))
    with monkeypatch.context() as patched:
        patched.setattr("models.chat.engine.asyncio.sleep", pause)
        await engine.ask("a")
    assert pauses == ([3.0] if others else [])
