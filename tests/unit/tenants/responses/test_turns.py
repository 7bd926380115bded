"""Many concurrent calls for stored responses of one team do not block those of other teams."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from registry.errors import NotFound, QueueFull
from tenants.responses.store import ResponseStore
from tests.eventually import PATIENCE


class SlowTable:
    """A table whose reads block."""

    def __init__(self) -> None:
        self.answers, self.stored = threading.Event(), list[str]()

    def get(self, team: str, id_: str) -> None:
        self.answers.wait(PATIENCE)

    def put(self, id_: str, *_: object, running: bool) -> bool:
        self.stored.append(id_)
        return True


async def test_a_teams_many_reads_do_not_delay_another_teams_answer(tmp_path: Path) -> None:
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
