"""Sessions of a fleet while a client sends many made-up cookies."""

import asyncio
import threading
from typing import Any

from console.sessions import Sessions
from tests.eventually import PATIENCE


class SlowStore:
    """A database that never answers a search."""

    def __init__(self) -> None:
        self.answers, self.added = threading.Event(), list[str]()

    def add(self, digest: str, owner: str, credential: str, most: int) -> None:
        self.added.append(owner)

    def find(self, digest: str) -> None:
        self.answers.wait(PATIENCE)

    def remove(self, digest: str) -> None: ...


async def test_unknown_cookies_do_not_block_signing_in() -> None:
    sessions, store = Sessions(8000), SlowStore()
    sessions.share(store, "fleet")
    theirs: list[asyncio.Task[Any]] = [
        asyncio.create_task(sessions.refresh(f"{sessions.cookie}=made-up-{number}")) for number in range(70)
    ]
    await asyncio.sleep(0)
    try:
        begun = asyncio.create_task(sessions.begin("key00001"))  # would fail here if the pool were full
        await asyncio.sleep(0)
        assert not begun.done()
    finally:
        store.answers.set()
    await asyncio.gather(*theirs)
    assert await begun
    assert len(store.added) == 1
