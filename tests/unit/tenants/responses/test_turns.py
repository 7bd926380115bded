"""Many calls about stored responses at one time: one team keeps no other team's answer from being stored."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from registry.errors import NotFound, QueueFull
from tenants.responses.store import ResponseStore
from tests.eventually import PATIENCE


class SlowTable:
    """A table whose reads wait."""

    def __init__(self) -> None:
        self.answers, self.stored = threading.Event(), list[str]()

    def get(self, team: str, id_: str) -> None:
        self.answers.wait(PATIENCE)

    def put(self, id_: str, *_: object, running: bool) -> bool:
        self.stored.append(id_)
        return True


async def test_a_team_that_reads_much_keeps_no_answer_from_being_stored(tmp_path: Path) -> None:
    store, table = ResponseStore(tmp_path), SlowTable()
    patched: Any = store
    patched._table, patched._hours = table, {"greedy": 1, "search": 1}
    theirs = [asyncio.create_task(store.get("greedy", "resp_1")) for _ in range(34)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await store.get("greedy", "resp_1")
    ours = asyncio.create_task(store.put("resp_2", "search", b"[]", b"{}"))
    await asyncio.sleep(0)
    table.answers.set()
    async with asyncio.timeout(PATIENCE):
        assert await ours
        assert all(isinstance(end, NotFound) for end in await asyncio.gather(*theirs, return_exceptions=True))
    assert table.stored == ["resp_2"]
