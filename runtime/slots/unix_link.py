"""A link over a Unix socket to a slot on this machine, which leads its own process group.

When the socket closes, the link reads from the kernel how the process ended, and kills its group, because children of a
slot must not outlive it.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable

from models import process_control
from models.engines import prewarmed_bytes
from models.messages import MemoryFootprint
from registry.base.control_groups import OomKills
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime.slots import frames
from runtime.slots.frames import socket_path
from runtime.slots.link import CONNECT_SECONDS, UNKNOWN, Cause, FrameCall, SlotLink
from runtime.slots.processes import GroupPeak, cause_of, group_bytes, hold

log = logging.getLogger("roundhouse.pool")
KILL_SECONDS = 30.0
"""Time the kernel may take to end a process group before this is logged and the group is killed again."""


class UnixSlotLink:
    """A `runtime.slots.link.SlotLink`. When it ends, it calls `on_death` with itself."""

    def __init__(self, slot_id: int, address: str, on_death: Callable[[SlotLink], None]) -> None:
        self.slot_id, self.address = slot_id, address
        self.pid = 0
        self.group = 0
        """The process group; kept when `pid` is reset at the end."""
        self._peak = GroupPeak(0)
        self.prewarmed: str | None = None
        self.prewarmed_bytes = 0
        self.warm = False
        self.cause = UNKNOWN
        self._kills = OomKills()
        self._on_death = on_death
        self._out: frames.Outbox | None = None
        self._calls: dict[int, FrameCall] = {}
        self._uids = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._out is not None

    def cold(self) -> None:
        self.prewarmed, self.prewarmed_bytes, self.warm = None, 0, False

    async def connect(self, timeout: float = CONNECT_SECONDS) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while (connection := await self._try_to_connect(deadline)) is None:
            if clock() >= deadline:
                raise Unavailable(f"Slot {self.slot_id} did not start within {timeout:.0f} s.", retry_after=5)
            await asyncio.sleep(0.01)
        hello, reader, writer = connection
        self.pid, self._out = hello.pid, frames.Outbox(writer)
        self.prewarmed, self.prewarmed_bytes = hello.warms, prewarmed_bytes(hello.warms)
        self.group, self._peak, self._kills = hello.pid, GroupPeak(hello.pid), OomKills(hello.pid)
        self._reader = asyncio.create_task(self._read(reader, writer, hold(hello.pid)), name=f"slot-{self.slot_id}")

    async def _try_to_connect(
        self, deadline: float
    ) -> tuple[frames.Hello, asyncio.StreamReader, asyncio.StreamWriter] | None:
        writer = None
        try:
            async with asyncio.timeout_at(deadline):
                reader, writer = await asyncio.open_unix_connection(self.address, limit=1 << 20)
                hello = (await frames.read_frames(reader, frames.from_slot_decoder))[0]
            if isinstance(hello, frames.Hello):
                return hello, reader, writer
        except (OSError, asyncio.IncompleteReadError):  # TimeoutError is one
            pass
        if writer is not None:
            writer.close()
        return None

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: int | None) -> None:
        broken: Cause | None = None
        try:
            while True:
                for frame in await frames.read_frames(reader, frames.from_slot_decoder):
                    if call := self._calls.get(frame.uid):
                        call.put(frame)
                    elif isinstance(frame, frames.EngineBroken):
                        broken = Cause.of(frame.error())
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._out = None
            writer.close()
            if self.pid:  # children of a killed slot must not outlive it
                pid, self.pid = self.pid, 0
                self.cause = cause_of(pid, self._kills, handle)
                _signal_group(pid, signal.SIGKILL)
            if handle is not None:
                os.close(handle)
            self.cause = broken or self.cause
            for uid, call in self._calls.items():
                call.put(
                    frames.CallFailed(
                        uid, 503, "engine_died",
                        f"The engine died while it was answering ({self.cause.text}). Send the request again.",
                        None, 1.0,
                    )
                )  # fmt: skip
            self._on_death(self)

    def call(self, make: Callable[[int], frames.ToSlot]) -> FrameCall:
        if self._out is None:
            raise Unavailable("The process that runs this model is being restarted.", retry_after=1.0)
        uid = next(self._uids)
        self._calls[uid] = call = FrameCall(self, uid)
        self._out.put(make(uid))
        return call

    def cancel(self, uid: int) -> None:
        if self._out is not None:
            self._out.put(frames.Cancel(uid))

    def forget(self, uid: int) -> None:
        self._calls.pop(uid, None)

    async def command(
        self, make: Callable[[int], frames.ToSlot], timeout: float, sent: Callable[[], None] = lambda: None
    ) -> MemoryFootprint | None:
        async with self.call(make) as call:
            sent()
            try:
                async with asyncio.timeout(timeout):
                    await call.done()
            except TimeoutError:
                self.cancel(call.uid)
                call.over()
                raise EngineFailed(f"The engine did not answer within {timeout:.0f} s.", code="engine_hung") from None
            self._kills.reset()  # kills before this sign of life did not hit this process
            return call.held

    async def counted(self, timeout: float) -> bytes:
        try:
            async with self.call(frames.Count) as call:
                try:
                    async with asyncio.timeout(timeout):
                        await call.done()
                except TimeoutError:
                    call.over()
                return call.counted
        except RoundhouseError:
            return b""

    async def end(self, cause: Cause | None = None) -> None:
        """See `SlotLink`. May be called twice at the same time."""
        pid, self.pid, group, reader = self.pid, 0, self.group, self._reader
        if pid:
            self.cause = cause or self.cause
            _signal_group(pid, signal.SIGKILL)
            if not await _ends(group, KILL_SECONDS) and reader is not None:
                reader.cancel()  # its socket stays open, but waiting callers must still learn of the end
        await _gone(group, self.slot_id)
        if reader is not None:
            await asyncio.wait({reader}, timeout=5)

    def gone(self) -> Awaitable[None]:
        return _gone(self.group, self.slot_id)

    async def used_bytes(self) -> int:
        return await asyncio.to_thread(group_bytes, self.group, False)

    async def peak_bytes(self) -> int:
        return await asyncio.to_thread(self._peak.read)


def unix_links(run_dir: str) -> Callable[[int, Callable[[SlotLink], None]], SlotLink]:
    """Return a factory of links from slot number and death callback."""
    return lambda slot_id, on_death: UnixSlotLink(slot_id, socket_path(run_dir, slot_id), on_death)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _gone(group: int, slot_id: int) -> None:
    """Wait for the end of a killed process group, which a driver may delay."""
    pause = 0.005
    while not await _ends(group, KILL_SECONDS, pause):
        log.error("killed processes have not ended yet", extra={"slot": slot_id, "group": group})
        _signal_group(group, signal.SIGKILL)
        pause = 1.0


async def _ends(group: int, timeout: float, pause: float = 0.005) -> bool:
    """Wait until all processes of a group have ended; return False if that takes longer than `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while group and process_control.is_group_alive(group):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(pause)
    return True
