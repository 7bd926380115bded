"""A pool of in-process slots with scripted engines, real sockets and frames, but no processes to kill."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from registry.errors import Unavailable
from runtime.slots.link import Cause, SlotLink
from runtime.slots.processes import GroupPeak
from runtime.slots.server import SlotServer
from runtime.slots.unix_link import UnixSlotLink
from tests.fakes.engine import FakeEngine


class FakeLink(UnixSlotLink):
    """A link whose `end` stops the in-process server instead of killing a process group."""

    server: SlotServer
    task: "asyncio.Task[None]"
    ended = 0

    async def connect(self, timeout: float = 5.0) -> None:
        await super().connect(timeout)
        self.pid = self.group = 0
        self._peak = GroupPeak(0)  # excludes the tests' own processes

    async def end(self, cause: Cause | None = None) -> None:
        self.ended += 1
        self.cause = cause or self.cause
        self.server._stop.set()
        for writer in list(self.server._writers):
            writer.close()
        await asyncio.wait({self.task})
        if self._reader is not None:
            await asyncio.wait({self._reader})

    async def crash(self) -> None:
        """Let the process end by itself."""
        await self.end()
        self.ended -= 1


class FakePool:
    """The part of SlotPool that ResidencyManager uses."""

    def __init__(self, folder: Path, size: int, make: Callable[[], FakeEngine]) -> None:
        self.folder, self.size, self.make = folder, size, make
        self.free = size
        self.addable = 0
        self.requested = 0
        self.closed = False
        self.on_death: Callable[[SlotLink], None] = lambda link: None
        self.engines: list[FakeEngine] = []
        self.links: list[FakeLink] = []

    async def take(self, engine: str, timeout: float = 5.0) -> SlotLink:
        if self.closed:  # a load after a death during shutdown
            raise Unavailable("The pool is closed.")
        self.free -= 1
        made = self.make()
        self.engines.append(made)
        link = FakeLink(len(self.links), str(self.folder / f"{len(self.links)}.sock"), self._died)
        link.server = SlotServer(link.address, lambda *_: made, exit_on_disconnect=False)
        link.task = asyncio.create_task(link.server.serve())
        await link.connect()
        self.links.append(link)
        return link

    async def cool(self, room: int, keep: str | None = None) -> None:
        """Do nothing: there are no pre-warmed slots here."""

    def add_slot(self) -> None:
        """Count the request; the test adds the slot."""
        self.requested += 1

    def _died(self, link: SlotLink) -> None:
        self.free += 1
        self.on_death(link)

    async def close(self) -> None:
        self.closed = True
        for link in self.links:
            if not link.task.done():
                await link.end()
