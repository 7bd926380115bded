"""Staging and placing an adapter, with engine processes that only count what they hold."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat import adapters
from models.chat.adapters import EngineAdapters
from models.messages import AdapterRef
from registry.errors import EngineFailed

ADAPTER = AdapterRef(digest=f"sha256:{1:064x}", path="/store/one", rank=8, bytes=1)


class Core:
    """vLLM's client of several EngineCores, and what each of them has in memory and in places."""

    def __init__(self, *polls: int) -> None:
        """polls: how often each must be asked until an adapter is read, and until it is placed."""
        self._polls = polls or (0,)
        self._left = [0] * len(self._polls)
        self.held: list[set[int]] = [set() for _ in self._polls]
        self.placed: list[set[int]] = [set() for _ in self._polls]
        self._target = self.held

    async def call_utility_async(self, method: str, call: str, arguments: list[Any]) -> list[str]:
        """Return the first one's answer, as vLLM's own client of several does."""
        return (await self.call_utility_all_async(method, call, arguments))[0]

    async def call_utility_all_async(self, _: str, call: str, arguments: list[Any]) -> list[list[str]]:
        return [self._answer(engine, call, arguments[0]) for engine in range(len(self._polls))]

    def _answer(self, engine: int, call: str, number: int) -> list[str]:
        if call == "drop_adapter":
            self.held[engine].discard(number)
            return ["done"]
        if call == "place_adapter" and number not in self.held[engine]:
            return ["failed", "the adapter was never staged"]
        if call == "poll_adapter":
            self._left[engine] = max(0, self._left[engine] - 1)
        else:
            self._left[engine] = self._polls[engine]
            self._target = self.held if call == "stage_adapter" else self.placed
        if self._left[engine]:
            return ["running"]
        self._target[engine].add(number)
        return ["done"]


async def test_a_cancelled_stage_leaves_nothing_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, may_read = threading.Event(), threading.Event()

    def read(_: Path) -> str:
        reads.set()
        may_read.wait()
        return ""

    monkeypatch.setattr(adapters, "own_template", read)
    core, names = Core(), dict[str, Any]()
    of_engine = EngineAdapters(SimpleNamespace(engine_core=core), names)
    staging = asyncio.create_task(of_engine.stage(ADAPTER))
    await asyncio.to_thread(reads.wait)
    staging.cancel()
    may_read.set()
    with pytest.raises(asyncio.CancelledError):
        await staging
    assert core.held == [set()], "its host memory could never be freed again"
    await of_engine.stage(ADAPTER)
    assert len(core.held[0]) == 1


async def test_an_adapter_is_placed_once_each_of_several_engines_has_it() -> None:
    """Requests go to any of them (`parallel.data`)."""
    core = Core(0, 3)
    of_engine = EngineAdapters(SimpleNamespace(engine_core=core), {})
    await of_engine.stage(ADAPTER)
    assert core.held[0] == core.held[1] != set()
    await of_engine.place(ADAPTER, None)
    assert core.placed == core.held


async def test_a_failure_in_one_of_several_engines_is_reported() -> None:
    core = Core(0, 0)
    of_engine = EngineAdapters(SimpleNamespace(engine_core=core), {})
    await of_engine.stage(ADAPTER)
    core.held[1].clear()
    with pytest.raises(EngineFailed, match="never staged"):
        await of_engine.place(ADAPTER, None)
    assert not of_engine.may_be_named(ADAPTER.digest)
