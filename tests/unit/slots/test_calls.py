"""A call to a slot, as its caller sees it: joined chunks, a bound on what is not read, and how it ends."""

import asyncio
import signal

import pytest

from models.messages import Chunk, Progress, ResponseEnd, Usage
from registry.errors import EngineFailed, RequestTimedOut, Unavailable
from runtime.slots import frames, link
from runtime.slots.link import UNKNOWN, Cause, FrameCall


class Sender:
    """A link that records what calls ask of it."""

    def __init__(self) -> None:
        self.cancelled, self.forgotten = list[int](), list[int]()

    def cancel(self, uid: int) -> None:
        self.cancelled.append(uid)

    def forget(self, uid: int) -> None:
        self.forgotten.append(uid)


UID = 7


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def call(sender: Sender) -> FrameCall:
    return FrameCall(sender, UID)


def chunk(data: bytes, tokens: tuple[int, int, int] | None = None) -> frames.Emit:
    return frames.Emit(UID, Chunk(data), tokens)


async def test_chunks_that_wait_are_joined_and_other_events_keep_their_place(call: FrameCall) -> None:
    end = ResponseEnd(Usage(prompt_tokens=3, completion_tokens=2))
    for frame in (chunk(b"a"), chunk(b"b"), frames.Report(UID, Progress("weights", 0.5)), chunk(b"c")):
        call.put(frame)
    assert await call.next() == Chunk(b"ab")
    assert await call.next() == Progress("weights", 0.5)
    call.put(frames.Emit(UID, end))
    call.put(frames.CallDone(UID))
    assert [event async for event in call.events()] == [Chunk(b"c"), end]
    assert await call.next() is None


async def test_the_usage_so_far_is_known_without_reading(call: FrameCall) -> None:
    call.put(chunk(b"a", (5, 1, 2)))
    assert call.usage == Usage(prompt_tokens=5, completion_tokens=1, cached_tokens=2)
    call.put(chunk(b"b"))
    assert call.usage == Usage(prompt_tokens=5, completion_tokens=1, cached_tokens=2)
    end = Usage(prompt_tokens=5, completion_tokens=9)
    call.put(frames.Emit(UID, ResponseEnd(end), (5, 2, 2)))
    assert call.usage == end


async def test_a_client_that_does_not_read_is_cut_off_at_the_bound(
    sender: Sender, call: FrameCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_BUFFERED", 10)
    for _ in range(3):  # what was read does not count
        call.put(chunk(b"12345"))
        call.put(chunk(b"67890"))
        assert await call.next() == Chunk(b"1234567890")
    call.put(chunk(b"1234567890"))
    assert sender.cancelled == []
    call.put(chunk(b"1"))
    assert sender.cancelled == [UID]
    assert await call.next() == Chunk(b"1234567890")
    with pytest.raises(RequestTimedOut, match="stopped reading") as slow:
        await call.next()
    assert slow.value.code == "client_too_slow"
    assert await call.next() is None


async def test_a_failed_call_ends_at_once_and_a_stopped_one_with_its_work(sender: Sender) -> None:
    error = Unavailable("The model was unloaded.", code="drained")
    failed, stopped = FrameCall(sender, 1), FrameCall(sender, 2)
    failed.fail(error)
    with pytest.raises(Unavailable, match="unloaded") as ended:
        await failed.next()
    assert ended.value.code == "drained"
    stopped.stop(error)
    assert sender.cancelled == [1, 2]
    waiting = asyncio.ensure_future(stopped.next())
    await asyncio.sleep(0)
    assert not waiting.done(), "the work has not left the engine"
    stopped.put(frames.CallDone(2))
    with pytest.raises(Unavailable, match="unloaded"):
        await waiting


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_call_left_early_is_cancelled_and_one_that_is_over_is_not(sender: Sender, is_read: bool) -> None:
    async with FrameCall(sender, UID) as call:
        call.put(chunk(b"a"))
        call.put(frames.CallDone(UID))
        if is_read:
            assert [event async for event in call.events()] == [Chunk(b"a")]
    assert (sender.cancelled, sender.forgotten) == ([] if is_read else [UID], [UID])


async def test_an_error_that_ends_a_call_left_early_is_ignored(sender: Sender) -> None:
    async with FrameCall(sender, UID) as call:
        call.put(frames.CallFailed(UID, 500, "engine_failed", "It broke."))
    assert (sender.cancelled, sender.forgotten) == ([UID], [UID])


async def test_a_slot_that_does_not_answer_a_cancel_is_left_after_a_while(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LEAVE_SECONDS", 0.01)
    async with FrameCall(sender, UID):
        pass
    assert (sender.cancelled, sender.forgotten) == ([UID], [UID])


def test_a_death_may_be_for_want_of_memory_unless_its_cause_is_another() -> None:
    for cause, may_be in (
        (UNKNOWN, True),
        (Cause("out_of_memory", "by the kernel"), True),
        (Cause("killed", "by SIGKILL", signal.SIGKILL), True),
        (Cause("killed", "by SIGSEGV", signal.SIGSEGV), False),
        (Cause("exited", "with status 1"), False),
    ):
        assert cause.may_be_memory is may_be, cause
    assert Cause.of(EngineFailed("It broke.", code="")) == Cause("engine_failed", "It broke")
