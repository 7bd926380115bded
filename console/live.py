"""One sampler and one stream of events for all viewers. Idle without viewers.

A sample is taken every second and shortly after a decision. It is encoded once for viewers of all teams, and once for
each team with viewers of its own.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Literal

import msgspec

from console.history import LoggedDecision, MinuteSeries, RequestRow
from models import sse
from registry.bounds import USUAL
from registry.errors import QueueFull

StallState = Literal["run", "held", "swap"]


class Stall(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    adapter: str
    state: StallState
    running: int = 0
    waiting: int = 0
    pinned: bool = False


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter places of one base model."""

    model: str
    state: str
    places: int
    stalls: list[Stall]
    host_used: int
    host_places: int
    running: int
    waiting: int
    adapters: int
    away: list[str]
    """Adapters that are in no place. A selection if there are many."""


class ModelPart(msgspec.Struct, frozen=True, kw_only=True):
    """A model and the memory it uses."""

    id: str
    task: str
    state: str
    devices: list[str]
    """Devices that hold it, if any."""
    bytes: int
    host_bytes: int
    running: int
    waiting: int
    pinned: bool
    idle_seconds: float | None
    wake_seconds: float | None
    phase: str = ""
    percent: float | None = None
    detail: str = ""
    failure: str = ""


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of a device or of the host."""

    label: str
    budget: int
    held: int
    name: str = ""
    """Such as 'cuda:1', if there are several devices."""
    fault: str = ""
    """Why the device is unavailable. Empty if it is available."""


class LastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A one-line summary of an ended request. The page Requests shows the details."""

    id: str
    team: str
    service_class: str
    answered_by: str
    """`chat`, `chat:legal` or `provider/model`. The requested name if nothing answered."""
    why: str
    """Why the router chose it. '' without a router."""
    end: str
    causes: dict[str, float]
    total: float

    @classmethod
    def of(cls, row: RequestRow) -> "LastRequest":
        local = f"{row.model}:{row.adapter}" if row.adapter else row.model
        return cls(
            id=row.id, team=row.team, service_class=row.service_class, end=row.end, causes=row.causes, total=row.total,
            answered_by=(f"{row.provider}/{row.model}" if row.provider else local) or row.asked,
            why=row.route.reason if row.route else "",
        )  # fmt: skip


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    phase: str
    uptime: float
    device: MemoryUse
    """All devices together."""
    devices: list[MemoryUse]
    host: MemoryUse | None
    models: list[ModelPart]
    rings: list[Ring]
    running: int
    waiting: int
    longest_wait: float
    next_to_leave: dict[str, str]
    """Models that would leave first to make room on their device, and how. Empty if none could leave now."""
    minute: MinuteSeries
    cost_per_accepted: float | None
    """Cost since the start, in the server's currency. None if no answer was accepted or the viewer may not see it."""
    currency: str
    decisions: list[LoggedDecision]
    shares: dict[str, float] | None
    """Seconds of engine work by team. None for viewers who may not see other teams."""
    requests: list[LastRequest]
    """The latest ended requests, of all teams or of the viewer's."""


class Stalls:
    """Assigns the stall numbers of one base model, by adapter digest."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def assign(self, places: int, placed: Iterable[str], moving: Mapping[str, str | None]) -> dict[str, int]:
        """Return the stall of each adapter. placed: in a place. moving: on its way, with the adapter it replaces."""
        before = self._at
        stalls = {digest: before[digest] for digest in placed if before.get(digest, places) < places}
        for digest, victim in moving.items():
            taken = before.get(digest, before.get(victim or "", places))
            if taken < places and taken not in stalls.values():
                stalls[digest] = taken
        free = iter(sorted(set(range(places)) - set(stalls.values())))
        for digest in (*placed, *moving):
            if digest not in stalls and (number := next(free, None)) is not None:
                stalls[digest] = number
        self._at = stalls
        return stalls


log = logging.getLogger("roundhouse.console")
EVERY, LEAST = 1.0, 0.12
"""Seconds between two samples: usually, and at least."""


ViewFor = Callable[[LiveView, str | None], LiveView]
"""Restricts a view to one team. None for all teams."""


class Live:
    """Streams samples to viewers. most: concurrent viewers, of which those of one team may be three quarters."""

    def __init__(
        self, view_for: ViewFor, most: int = USUAL.viewers, every: float = EVERY, least: float = LEAST
    ) -> None:
        self._view_for, self._most, self._every, self._least = view_for, most, every, least
        self.viewers = 0
        self._of_team = Counter[str]()
        self._sampler: asyncio.Task[None] | None = None
        self._sample: LiveView | None = None
        self._encoded: dict[str | None, bytes] = {}
        """The sample as an event of the stream, by team."""
        self._poked, self._fresh = asyncio.Event(), asyncio.Event()
        self._closed = False

    def poke(self) -> None:
        """Schedule an update after a decision."""
        if self.viewers:
            self._poked.set()

    def close(self) -> None:
        """End every stream, so that the server can stop. Browsers reconnect."""
        self._closed = True
        self._tell()

    async def opened(
        self, look: Callable[[], LiveView], team: str | None, may: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """Return `events`, counted as a viewer before the first byte, because many may connect at once.

        may: checked before each event, because a stream outlives changes of its viewer's key. False ends it. Raises
        QueueFull.
        """
        stream = self.events(look, team)
        return _after(await anext(stream), stream, may)

    async def events(self, look: Callable[[], LiveView], team: str | None) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until the viewer disconnects or the server stops. Raises QueueFull."""
        if self.viewers >= self._most:
            raise QueueFull(
                f"{self._most} viewers are connected already. Close a page, or try again later.", retry_after=10
            )
        if team is not None and self._of_team[team] >= max(1, self._most * 3 // 4):
            raise QueueFull(
                f"{self._of_team[team]} viewers of your team are connected already. Close a page, or try again later.",
                retry_after=10,
            )
        self.viewers += 1
        self._of_team[team or ""] += 1
        if self._sampler is None:
            self._sampler = asyncio.create_task(self._take(look), name="console-sampler")
        try:
            yield b"retry: 1000\n\n"
            sent: LiveView | None = None
            while not self._closed:
                fresh, sample = self._fresh, self._sample
                if sample is not None and sample is not sent:
                    sent = sample
                    if team not in self._encoded:
                        self._encoded[team] = sse.event(self._view_for(sample, team), "now")
                    yield self._encoded[team]
                await fresh.wait()
        finally:
            self.viewers -= 1
            self._of_team[team or ""] -= 1
            self._of_team += Counter()  # removes those without viewers
            if not self.viewers and self._sampler is not None:
                self._sampler.cancel()
                self._sampler = self._sample = None

    async def _take(self, look: Callable[[], LiveView]) -> None:
        while True:
            self._poked.clear()
            try:
                self._sample, self._encoded = look(), {}
                self._tell()
            except Exception:  # a fault must not end the stream for all viewers
                log.exception("cannot sample the state of the server for the console")
            await asyncio.sleep(self._least)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every - self._least):  # wait_for may drop a cancellation
                    await self._poked.wait()

    def _tell(self) -> None:
        self._fresh.set()
        self._fresh = asyncio.Event()


async def _after(
    first: bytes, stream: AsyncGenerator[bytes, None], may: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Yield `first` and the rest. Closes `stream` when the wrapper is collected, even if it was never iterated."""
    async with contextlib.aclosing(stream):
        yield first
        async for event in stream:
            if not may():
                return
            yield event
