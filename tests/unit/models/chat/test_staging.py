"""Staging an adapter, with an engine process that only counts what it holds."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat import adapters
from models.chat.adapters import EngineAdapters
from models.messages import AdapterRef

ADAPTER = AdapterRef(digest=f"sha256:{1:064x}", path="/store/one", rank=8, bytes=1)


class Core:
    """EngineCore's calls for adapters."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    async def call_utility_async(self, _: str, call: str, arguments: list[Any]) -> list[str]:
        if call == "stage_adapter":
            self.held.add(arguments[0])
        if call == "drop_adapter":
            self.held.discard(arguments[0])
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
    assert not core.held, "its host memory could never be freed again"
    await of_engine.stage(ADAPTER)
    assert len(core.held) == 1
