"""The gateway's end of one slot: calls, their streams of frames, and the slot's death.

| state     | connect                | call                         | end                                    |
|-----------|------------------------|------------------------------|----------------------------------------|
| away      | waits for the socket   | Unavailable                  | nothing to do                          |
| connected | already                | frames until Done or Failed  | kills the process group, waits till gone |

A slot whose socket closes is away, and so is one that says that its engine has ended: its process group is killed.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from models import process_group
from models.engines import prewarmed_bytes
from models.memory_group import Kills
from models.messages import Chunk, Event, Finished, Held, Loaded, Progress, Usage
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime.slots import frames
from runtime.slots.death import UNKNOWN, Cause, cause_of, hold
from runtime.slots.memory import GroupPeak

CONNECT_SECONDS = 60.0
LEAVE_SECONDS = 2.0
MAX_BUFFERED = 16 * 1024 * 1024


class Call:
    """One call in flight; an async context manager that cancels the work when it is left early."""

    def __init__(self, link: "SlotLink", uid: int) -> None:
        self._link, self.uid = link, uid
        self._arrived: asyncio.Queue[frames.FromSlot] = asyncio.Queue()
        self._buffered = 0
        self._over = False

    def put(self, frame: frames.FromSlot) -> None:
        """Called by the link for each frame that arrives for this call."""
        if isinstance(frame, frames.Emit) and isinstance(frame.event, Chunk):
            self._buffered += len(frame.event.data)
            if self._buffered > MAX_BUFFERED:  # a client that does not read must not fill our memory
                self._link.cancel(self.uid)
                frame = frames.Failed(self.uid, 408, "client_too_slow", "The client stopped reading the answer.")
        self._arrived.put_nowait(frame)

    async def events(self) -> AsyncIterator[Event | Progress]:
        """What the slot sends, until it is done. Raises the slot's error."""
        while not self._over:
            frame = await self._arrived.get()
            match frame:
                case frames.Emit():
                    if isinstance(frame.event, Chunk):
                        self._buffered -= len(frame.event.data)
                    yield frame.event
                case frames.Report():
                    yield frame.progress
                case frames.Done():
                    self._over = True
                    self.loaded, self.held = frame.loaded, frame.held
                case frames.Failed():
                    self._over = True
                    raise frame.error()

    loaded: Loaded | None = None
    held: Held | None = None
    usage: Usage | None = None
    """Of a call that was left early."""

    async def done(self, report: Callable[[Progress], None] | None = None) -> Loaded | None:
        """Wait for the end of a call that has no events but progress."""
        async for event in self.events():
            if report and isinstance(event, Progress):
                report(event)
        return self.loaded

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
        """Cancel, and wait until the work has left the engine: only then may its place go to somebody else."""
        self._link.cancel(self.uid)
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                async for event in self.events():
                    if isinstance(event, Finished):
                        self.usage = event.usage
        except (RoundhouseError, TimeoutError):
            pass


class SlotLink:
    """The connection to one slot. `on_death` is called once per connection that ends, with this link."""

    def __init__(self, slot_id: int, address: str, on_death: Callable[["SlotLink"], None]) -> None:
        self.slot_id, self.address = slot_id, address
        self.pid = 0
        self.group = 0
        """The process group of the last connection; stays when `pid` is taken away at the end."""
        self.peak = GroupPeak(0)
        """What that group has held at most."""
        self.prewarmed: str | None = None
        """The engine whose libraries an empty slot has imported, or is importing."""
        self.prewarmed_bytes = 0
        self.warm = False
        """Whether that import has ended."""
        self.cause = UNKNOWN
        """Why the last connection ended; read it in `on_death`."""
        self._kills = Kills()
        self._on_death = on_death
        self._out: frames.Outbox | None = None
        self._calls: dict[int, Call] = {}
        self._uids = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._out is not None

    def cold(self) -> None:
        """It counts as pre-warmed no more: it is taken, or its end has come."""
        self.prewarmed, self.prewarmed_bytes, self.warm = None, 0, False

    async def connect(self, timeout: float = CONNECT_SECONDS) -> None:
        """Wait for the slot's socket and its greeting. Raises Unavailable when it does not come up in time."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self.address, limit=1 << 20)
                hello = (await frames.read_frames(reader, frames.from_slot_decoder))[0]
                if isinstance(hello, frames.Hello):
                    break
                writer.close()
            except (OSError, asyncio.IncompleteReadError):
                pass
            if time.monotonic() > deadline:
                raise Unavailable(f"Slot {self.slot_id} did not start within {timeout:.0f} s.", retry_after=5)
            await asyncio.sleep(0.01)
        self.pid, self._out = hello.pid, frames.Outbox(writer)
        self.prewarmed, self.prewarmed_bytes = hello.warms, prewarmed_bytes(hello.warms)
        self.warm = False
        self.group, self.peak = hello.pid, GroupPeak(hello.pid)
        self.cause, self._kills = UNKNOWN, Kills(hello.pid)
        self._reader = asyncio.create_task(self._read(reader, writer, hold(hello.pid)), name=f"slot-{self.slot_id}")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: int | None) -> None:
        broken: Cause | None = None
        try:
            while True:
                for frame in await frames.read_frames(reader, frames.from_slot_decoder):
                    if isinstance(frame, frames.Broken):
                        broken = Cause.of(frame.error())
                        return
                    if call := self._calls.get(frame.uid):
                        call.put(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._out = None
            writer.close()
            if self.pid:  # children of a killed slot must not outlive it
                self.cause = cause_of(self.pid, self._kills, held)
                _signal_group(self.pid, signal.SIGKILL)
            if held is not None:
                os.close(held)
            self.cause = broken or self.cause
            for uid, call in self._calls.items():
                message = f"The engine died while it was answering ({self.cause.text}). Send the request again."
                call.put(frames.Failed(uid, 503, "engine_died", message, None, 1.0))
            self._on_death(self)

    def call(self, make: Callable[[int], frames.ToSlot]) -> Call:
        """Send a frame and return the call; use it as a context manager. Raises Unavailable when away."""
        if self._out is None:
            raise Unavailable("The process that runs this model is being restarted.", retry_after=1.0)
        uid = next(self._uids)
        self._calls[uid] = call = Call(self, uid)
        self._out.put(make(uid))
        return call

    def cancel(self, uid: int) -> None:
        if self._out is not None:
            self._out.put(frames.Cancel(uid))

    def forget(self, uid: int) -> None:
        self._calls.pop(uid, None)

    async def command(self, make: Callable[[int], frames.ToSlot], timeout: float) -> Held | None:
        """A call without events; what is held after a sleep or a wake.

        Raises EngineFailed after `timeout` seconds, or the slot's error.
        """
        async with self.call(make) as call:
            try:
                await asyncio.wait_for(call.done(), timeout)
            except TimeoutError:
                raise EngineFailed(f"The engine did not answer within {timeout:.0f} s.", code="engine_hung") from None
            self._kills.look()  # who was killed before this sign of life was not this one
            return call.held

    async def end(self, grace: float = 0.0, cause: Cause | None = None) -> None:
        """End the slot's whole process group and wait until every process of it is gone.

        With `grace` seconds SIGTERM comes first, so that an engine can close. `cause` tells why it must end, if that is
        not by plan. Raises RoundhouseError if the kernel
        does not let the group go within 30 s (memory must never be counted as free before).
        """
        if not self.pid:
            return
        pid, self.pid = self.pid, 0
        self.cause = cause or self.cause
        if grace:
            _signal_group(pid, signal.SIGTERM)
            await gone(pid, grace)
        _signal_group(pid, signal.SIGKILL)
        if not await gone(pid, 30.0):
            raise RoundhouseError(f"Process group {pid} of slot {self.slot_id} does not end.")
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=5)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def gone(pid: int, timeout: float) -> bool:
    """Wait for the end of a process group, at most `timeout` seconds.

    True once no process of it is left (zombies that wait for their parent do not hold memory).
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not process_group.alive(pid):
            return True
        await asyncio.sleep(0.005)
    return not process_group.alive(pid)
