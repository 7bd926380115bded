"""One sampler and one stream of events for all viewers; idle without viewers.

A sample is taken each second, and soon after a decision. It is encoded once for viewers of all teams, and once for each
team with viewers of its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from console.live_view import LiveView
from models import sse
from registry.bounds import USUAL
from registry.errors import QueueFull

log = logging.getLogger("roundhouse.console")
EVERY, LEAST = 1.0, 0.12
"""Seconds between two samples: of a quiet server, and at least."""


ViewFor = Callable[[LiveView, str | None], LiveView]
"""Restricts a view to one team; None: a viewer of all teams."""


class Sample:
    def __init__(self, now: LiveView, view_for: ViewFor) -> None:
        self._now, self._view_for = now, view_for
        self._encoded: dict[str | None, bytes] = {}

    def event(self, team: str | None) -> bytes:
        """As an event of the stream."""
        if team not in self._encoded:
            now = self._view_for(self._now, team)
            self._encoded[team] = sse.event(now, "now")
        return self._encoded[team]


class Live:
    """most: viewers at one time."""

    def __init__(
        self, view_for: ViewFor, most: int = USUAL.viewers, every: float = EVERY, least: float = LEAST
    ) -> None:
        self._view_for, self._most, self._every, self._least = view_for, most, every, least
        self.viewers = 0
        self._sampler: asyncio.Task[None] | None = None
        self._sample: Sample | None = None
        self._poked, self._fresh = asyncio.Event(), asyncio.Event()
        self._closed = False

    @property
    def is_running(self) -> bool:
        return self._sampler is not None

    def poke(self) -> None:
        """Something was decided: look soon."""
        if self.viewers:
            self._poked.set()

    def close(self) -> None:
        """End every stream, so that the server can stop. Browsers reconnect."""
        self._closed = True
        self._tell()

    async def opened(
        self, look: Callable[[], LiveView], team: str | None, may: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """`events`, counted before the first byte, since many come at once. QueueFull.

        may: asked before each event. A stream outlives what is done to its viewer's key; once it says no, that ends it.
        """
        stream = self.events(look, team)
        return _after(await anext(stream), stream, may)

    async def events(self, look: Callable[[], LiveView], team: str | None) -> AsyncGenerator[bytes, None]:
        """Server-sent events until the viewer leaves or the server stops. QueueFull."""
        if self.viewers >= self._most:
            raise QueueFull(f"{self._most} people look at this already. Close a page, or try later.", retry_after=10)
        self.viewers += 1
        if self._sampler is None:
            self._sampler = asyncio.create_task(self._take(look), name="console-sampler")
        try:
            yield b"retry: 1000\n\n"
            sent: Sample | None = None
            while not self._closed:
                fresh, sample = self._fresh, self._sample
                if sample is not None and sample is not sent:
                    sent = sample
                    yield sample.event(team)
                await fresh.wait()
        finally:
            self.viewers -= 1
            if not self.viewers and self._sampler is not None:
                self._sampler.cancel()
                self._sampler = self._sample = None

    async def _take(self, look: Callable[[], LiveView]) -> None:
        while True:
            self._poked.clear()
            try:
                self._sample = Sample(look(), self._view_for)
                self._tell()
            except Exception:  # a fault of the page must not end the stream of all
                log.exception("a sample failed")
            await asyncio.sleep(self._least)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self._every - self._least)

    def _tell(self) -> None:
        self._fresh.set()
        self._fresh = asyncio.Event()


async def _after(
    first: bytes, stream: AsyncGenerator[bytes, None], may: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Close `stream` once the wrapper is collected, iterated or not."""
    async with contextlib.aclosing(stream):
        yield first
        async for event in stream:
            if not may():
                return
            yield event
