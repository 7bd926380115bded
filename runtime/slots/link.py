"""The gateway's end of the connection to one slot, as other packages see it.

A link ends with its slot's process, and the next process has a new link. So code that holds a link across an await
never reaches another model's engine through it. The processes, where they run and how they are ended are internal to
the link.
"""

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from models.messages import Chunk, Event, LoadResult, MemoryFootprint, Progress, ResponseEnd, Usage
from registry.errors import RoundhouseError
from runtime.slots import frames

LEAVE_SECONDS = 2.0
MAX_BUFFERED = 16 * 1024 * 1024


class Sender(Protocol):
    """The part of a link that a call needs."""

    def cancel(self, uid: int) -> None:
        """Make the slot stop the work."""
        ...

    def forget(self, uid: int) -> None:
        """Ignore further frames of this call."""
        ...


class FrameCall:
    """A call to a slot, as a context manager that cancels it if left early."""

    def __init__(self, link: Sender, uid: int) -> None:
        self._link, self.uid = link, uid
        self.loaded: LoadResult | None = None
        """The result of a load, once it is done."""
        self.held: MemoryFootprint | None = None
        self.counted = b""
        self.usage: Usage | None = None
        """Usage so far, also if the call is left early."""
        self._arrived = deque[frames.FromSlot]()
        self._some_arrived = asyncio.Event()
        self._buffered = 0
        self._over = False
        self._stopped: RoundhouseError | None = None

    def put(self, frame: frames.FromSlot) -> None:
        """Take a frame that arrived for this call. Called by the link."""
        if isinstance(frame, frames.Emit):
            event, tokens = frame.event, frame.tokens
            if isinstance(event, ResponseEnd):
                self.usage = event.usage
            elif tokens is not None:
                self.usage = Usage(prompt_tokens=tokens[0], completion_tokens=tokens[1], cached_tokens=tokens[2])
            if isinstance(event, Chunk):
                self._buffered += len(event.data)
                if self._buffered > MAX_BUFFERED:  # a client that does not read must not fill our memory
                    self._link.cancel(self.uid)
                    frame = frames.CallFailed(
                        self.uid, 408, "client_too_slow", "The client stopped reading the answer."
                    )
        self._arrived.append(frame)
        self._some_arrived.set()

    def fail(self, error: RoundhouseError) -> None:
        """End the call with this error at once, and make the slot stop the work."""
        self._link.cancel(self.uid)
        self.put(frames.CallFailed.of(self.uid, error))

    def stop(self, error: RoundhouseError) -> None:
        """Make the slot stop the work, and end the call with this error once the work has left the engine."""
        self._stopped = error
        self._link.cancel(self.uid)

    async def events(self) -> AsyncIterator[Event | Progress]:
        """Iterate over the events until the call is done. Raises the slot's error."""
        while (event := await self.next()) is not None:
            yield event

    async def next(self) -> Event | Progress | None:
        """Return the next event; None once the call is done. Raises the slot's error."""
        if self._over:
            return None
        while not self._arrived:
            self._some_arrived.clear()
            await self._some_arrived.wait()
        frame = self._arrived.popleft()
        if isinstance(frame, frames.Emit):
            return self._with_following(frame.event) if isinstance(frame.event, Chunk) else frame.event
        if isinstance(frame, frames.Report):
            return frame.progress
        self._over = True
        if self._stopped is not None:
            raise self._stopped
        if isinstance(frame, frames.CallFailed):
            raise frame.error()
        if isinstance(frame, frames.CallDone):
            self.loaded, self.held, self.counted = frame.loaded, frame.held, frame.counted
        return None

    def _with_following(self, chunk: Chunk) -> Chunk:
        """Join this chunk with those that have already arrived after it."""
        parts = [chunk.data]
        while self._arrived and isinstance(frame := self._arrived[0], frames.Emit) and isinstance(frame.event, Chunk):
            parts.append(frame.event.data)
            self._arrived.popleft()
        if len(parts) > 1:
            chunk = Chunk(b"".join(parts))
        self._buffered -= len(chunk.data)
        return chunk

    async def done(self, report: Callable[[Progress], None] | None = None) -> LoadResult | None:
        """Wait for the end of a call whose only events are progress."""
        async for event in self.events():
            if report and isinstance(event, Progress):
                report(event)
        return self.loaded

    def over(self) -> None:
        """Mark the call as over, so that leaving it does not wait for the slot."""
        self._over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._over:
                await self._leave()
        finally:
            self._link.forget(self.uid)

    async def _leave(self) -> None:
        """Cancel the call and wait until the work has left the engine, which frees its place."""
        self._link.cancel(self.uid)
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                async for _ in self.events():
                    pass
        except (RoundhouseError, TimeoutError):
            pass


CONNECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of an engine's end."""

    code: str
    """Code for metrics and clients: killed, exited, out_of_memory, engine_hung, engine_failed or ended."""
    text: str
    """Text for people, such as 'its process was ended by SIGKILL'."""
    signal: int | None = None
    """The signal that ended its process, if one did."""

    @property
    def may_be_memory(self) -> bool:
        """Whether it may have run out of memory."""
        return self.code in ("out_of_memory", UNKNOWN.code) or self.signal == signal.SIGKILL

    @classmethod
    def of(cls, error: RoundhouseError) -> Self:
        """Return the cause that an engine's error reports."""
        return cls(error.code or "engine_failed", error.message.rstrip("."))


UNKNOWN = Cause("ended", "its process ended")


class SlotLink(Protocol):
    """The gateway's link to one slot.

    | state     | connect                | call                         | end                               |
    |-----------|------------------------|------------------------------|-----------------------------------|
    | away      | waits for the slot     | Unavailable                  | nothing to do                     |
    | connected | nothing to do          | frames until Done or Failed  | ends the slot, waits until gone   |
    | over      | -                      | Unavailable                  | waits until gone                  |

    A slot that cannot be reached is away. A slot that reports the end of its engine is ended, and then over.
    """

    @property
    def slot_id(self) -> int: ...
    @property
    def pid(self) -> int:
        """Id of the slot's process, for display; 0 if there is none."""
        ...

    @property
    def connected(self) -> bool: ...
    @property
    def cause(self) -> Cause:
        """The cause of the connection's end."""
        ...

    # --- an empty slot ----------------------------------------------------------------------------------------------
    prewarmed: str | None
    """The engine whose libraries it has imported, or is importing."""
    prewarmed_bytes: int
    warm: bool
    """Whether that import is complete."""

    def cold(self) -> None:
        """Note that the slot no longer counts as pre-warmed, because it is taken or is being ended."""
        ...

    # --- lifecycle --------------------------------------------------------------------------------------------------
    async def connect(self, timeout: float = CONNECT_SECONDS) -> None:
        """Wait for the slot and its greeting. Raises Unavailable if it is late."""
        ...

    async def end(self, cause: Cause | None = None) -> None:
        """Kill the slot, and wait until none of its processes is left, however long that takes.

        Before that its memory must never count as free. `cause` is the reason if the end was not planned.
        """
        ...

    def gone(self) -> Awaitable[None]:
        """Wait until nothing is left of the ended process."""
        ...

    async def used_bytes(self) -> int:
        """Return the bytes that its processes hold now; 0 if unknown."""
        ...

    async def peak_bytes(self) -> int:
        """Return the most bytes that they have held so far; 0 if unknown."""
        ...

    # --- calls ------------------------------------------------------------------------------------------------------
    def call(self, make: Callable[[int], frames.ToSlot]) -> FrameCall:
        """Send a frame and return the call, a context manager. Raises Unavailable if away."""
        ...

    async def counted(self, timeout: float) -> bytes:
        """Return the engine's own metrics as Prometheus text; empty if none arrive within `timeout` seconds."""
        ...

    async def command(
        self, make: Callable[[int], frames.ToSlot], timeout: float, sent: Callable[[], None] = lambda: None
    ) -> MemoryFootprint | None:
        """Make a call without events; return the memory held after a sleep or a wake.

        `sent` is called once the frame is queued: frames sent from then on arrive after it.
        Raises EngineFailed after `timeout` seconds, or the slot's error.
        """
        ...
