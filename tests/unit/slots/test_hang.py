"""The time until a client learns that its slot was stopped during an answer, on a virtual clock."""

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.messages import HttpCall, LoadResult
from registry.errors import RoundhouseError, Unavailable
from runtime.config.budgets import DeviceBudget
from runtime.config.device import HostMemory
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.states import ModelState
from runtime.residency.table import Table
from runtime.slots import frames
from runtime.slots.link import Cause
from runtime.slots.unix_link import UnixSlotLink
from tests.fakes.gateway import no_fetch, no_revision
from tests.fakes.virtual import VirtualLoop
from tests.unit.residency.scripted import Witness, recipe

HEARTBEAT, HUNG_AFTER = 5.0, 30.0


class StoppedLink(UnixSlotLink):
    """Answers each ping at once until it is stopped, without a socket or a process."""

    def __init__(self) -> None:
        super().__init__(0, "", lambda link: None)
        self.stopped = False
        self._stream = asyncio.StreamReader()
        self._out = SimpleNamespace(put=self.put)  # type: ignore[assignment]
        self._reader = asyncio.create_task(self._read(self._stream, SimpleNamespace(close=lambda: None), None))  # type: ignore[arg-type]

    def put(self, frame: frames.ToSlot) -> None:
        if isinstance(frame, frames.Ping) and not self.stopped:
            self._calls[frame.uid].put(frames.CallDone(frame.uid))

    async def end(self, cause: Cause | None = None) -> None:
        self.cause = cause or self.cause
        self._stream.feed_eof()
        assert self._reader is not None
        await self._reader


async def answer(link: UnixSlotLink, call: HttpCall) -> None:
    async with link.call(lambda uid: frames.Call.of(uid, call)) as running:
        async for _ in running.events():
            pass


async def hang(at: float) -> tuple[RoundhouseError, float]:
    """Return the error of a running request whose slot stops at a time, and the seconds until the error."""
    link, loop = StoppedLink(), asyncio.get_running_loop()
    queue = SimpleNamespace(running=1, waiting=0, oldest=None, engine_gone=lambda: None, refuse=lambda error: None)
    entry = ModelEntry(
        recipe=recipe("a"), path=Path(), revision="r", needed=100, needed_detail="", load_seconds=1.0, bytes=100,
        queue=queue, clock=loop.time, state=ModelState.READY, link=link,  # type: ignore[arg-type]
        loaded=LoadResult(resident_bytes=100, weights_bytes=100),
    )  # fmt: skip

    pool = SimpleNamespace(free=0)
    table = Table([entry], pool, [DeviceBudget("cpu", 250)], Witness(), {"cpu": HostMemory()})  # type: ignore[arg-type]
    manager = ResidencyManager(table, no_fetch, no_revision)
    watching = asyncio.create_task(manager.watcher.watch(HEARTBEAT, HUNG_AFTER))
    loop.call_later(at, setattr, link, "stopped", True)
    call = HttpCall(path="/", body=b"", served="a", display_name="a")
    with pytest.raises(RoundhouseError) as reported:
        await answer(link, call)
    watching.cancel()
    await manager.close()
    return reported.value, loop.time() - at


async def test_a_slot_that_sends_no_greeting_has_not_started(tmp_path: Path) -> None:
    """The kernel accepts the connection on its behalf."""
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "s.sock"))
        stopped.listen()
        link = UnixSlotLink(0, str(tmp_path / "s.sock"), lambda link: None)
        with pytest.raises(Unavailable, match="did not start"):
            await asyncio.wait_for(link.connect(timeout=0.05), 200)
    assert not link.connected


@pytest.mark.parametrize("at", [0.0, 0.001, 2.5, 4.999, 5.001, 123.4])
def test_the_client_gets_an_error_within_a_heartbeat_and_the_patience(at: float) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        error, took = runner.run(hang(at))
    assert HUNG_AFTER <= took <= HEARTBEAT + HUNG_AFTER + 0.001
    assert (error.status, error.code, error.retry_after) == (503, "engine_died", 1.0)
    assert "did not answer within 30 s" in error.message
