"""Processes that end slowly, such as when a driver delays them, do not count as ended before."""

import asyncio
import signal
from types import SimpleNamespace

import pytest

from models import process_control
from registry.errors import Unavailable
from runtime.slots import frames, unix_link
from runtime.slots.link import Cause
from runtime.slots.unix_link import UnixSlotLink

GROUP = 1 << 30
"""A number that no process has."""


class Stubborn:
    """A slot whose processes stay until `stays` is False."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stays, self.kills = True, 0
        self.link = UnixSlotLink(0, "", lambda link: None)
        self.link.pid = self.link.group = GROUP
        monkeypatch.setattr(unix_link, "KILL_SECONDS", 0.01)
        monkeypatch.setattr(unix_link, "_signal_group", self._signal)
        monkeypatch.setattr(process_control, "is_group_alive", lambda group: self.stays)

    def _signal(self, group: int, number: int) -> None:
        assert (group, number) == (GROUP, signal.SIGKILL)
        self.kills += 1

    async def killed(self, times: int) -> None:
        async with asyncio.timeout(200):
            while self.kills < times:
                await asyncio.sleep(0.001)


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Stubborn:
    return Stubborn(monkeypatch)


async def test_an_end_waits_until_no_process_is_left(stubborn: Stubborn) -> None:
    ends = asyncio.create_task(stubborn.link.end())
    await stubborn.killed(2)
    assert not ends.done()
    second = asyncio.create_task(stubborn.link.end())
    await stubborn.killed(3)
    assert not second.done(), "a second end waits, too"
    stubborn.stays = False
    await asyncio.gather(ends, second)


async def test_a_waiting_call_fails_before_the_processes_have_ended(stubborn: Stubborn) -> None:
    link, closed = stubborn.link, SimpleNamespace(close=lambda: None)
    link._out = SimpleNamespace(put=lambda frame: None)  # type: ignore[assignment]
    link._reader = asyncio.create_task(link._read(asyncio.StreamReader(), closed, None))  # type: ignore[arg-type]
    async with link.call(frames.Ping) as call:
        await asyncio.sleep(0)
        ends = asyncio.create_task(link.end(cause=Cause("engine_hung", "it did not answer")))
        with pytest.raises(Unavailable, match="it did not answer"):
            await call.done()
    assert not ends.done()
    stubborn.stays = False
    await ends


async def test_a_dead_slot_is_gone_once_its_children_are(stubborn: Stubborn) -> None:
    gone = asyncio.ensure_future(stubborn.link.gone())
    stubborn.link.group = GROUP + 1  # the slot has another process
    await stubborn.killed(1)
    assert not gone.done()
    stubborn.stays = False
    await gone
