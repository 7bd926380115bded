"""A slot and its link on a real socket, with a scripted engine."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from models.messages import (
    AdapterRef,
    Chunk,
    Event,
    HttpCall,
    MemoryFootprint,
    Progress,
    ResponseEnd,
    ResponseStart,
    TranscribeRequest,
    TranscriptInfo,
    Usage,
)
from registry.errors import EngineFailed, Unavailable, Unfit
from registry.recipes.definition import Recipe
from runtime.slots import frames
from runtime.slots.link import LEAVE_SECONDS, SlotLink
from runtime.slots.server import SlotServer
from runtime.slots.unix_link import UnixSlotLink
from tests.fakes.engine import FakeEngine

RECIPE = Recipe.model_validate(
    {"id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"}}
)
SPEECH = Recipe.model_validate(
    {"id": "s", "version": 1, "task": "transcribe", "source": {"path": "x"}, "engine": {"name": "faster-whisper"}}
)
CALL = HttpCall(path="/v1/chat/completions", body=b"{}", served="m", display_name="m")


class Slot:
    def __init__(self, address: str) -> None:
        self.engine = FakeEngine()
        self.deaths: list[SlotLink] = []
        self.server = SlotServer(address, lambda *_: self.engine, exit_on_disconnect=False)
        self.link = UnixSlotLink(0, address, self.deaths.append)

    async def load(self, recipe: Recipe = RECIPE) -> None:
        async with self.link.call(lambda uid: frames.Load(uid, recipe.model_dump_json().encode(), "x", "cpu")) as call:
            await call.done()


@pytest.fixture
async def slot(tmp_path: Path) -> AsyncIterator[Slot]:
    slot = Slot(str(tmp_path / "s.sock"))
    task = asyncio.create_task(slot.server.serve())
    await slot.link.connect()
    slot.link.pid = 0  # the slot runs in this process, whose group must not be killed
    yield slot
    slot.server._stop.set()
    await task


async def test_a_load_reports_progress_and_memory(slot: Slot) -> None:
    seen = []
    async with slot.link.call(lambda uid: frames.Load(uid, RECIPE.model_dump_json().encode(), "x", "cpu")) as call:
        loaded = await call.done(seen.append)
    assert loaded is not None
    assert loaded.resident_bytes == 100
    assert [p.phase for p in seen] == ["weights"]
    assert slot.engine.recipe == RECIPE


async def test_a_second_load_is_refused(slot: Slot) -> None:
    await slot.load()
    with pytest.raises(EngineFailed, match="already has an engine"):
        await slot.load()


async def test_usage_is_known_with_every_chunk(slot: Slot) -> None:
    """So it is counted even if the engine dies during the call."""
    await slot.load()
    async with slot.link.call(lambda uid: frames.Call.of(uid, CALL, "r-1")) as call:
        seen = [call.usage async for event in call.events() if isinstance(event, Chunk)]
        assert seen[-1] == call.usage == Usage(prompt_tokens=2, completion_tokens=3)


async def test_events_arrive_in_order(slot: Slot) -> None:
    await slot.load()
    async with slot.link.call(lambda uid: frames.Call.of(uid, CALL)) as call:
        events = [event async for event in call.events()]
    assert isinstance(events[0], ResponseStart)
    assert b"".join(e.data for e in events if isinstance(e, Chunk)) == b"data: 0 m\n\ndata: 1 m\n\ndata: 2 m\n\n"
    assert events[-1] == ResponseEnd(usage=Usage(prompt_tokens=2, completion_tokens=3))


async def test_a_late_reader_gets_chunks_merged(slot: Slot) -> None:
    await slot.load()
    async with slot.link.call(lambda uid: frames.Call.of(uid, CALL)) as call:
        while call.usage != Usage(prompt_tokens=2, completion_tokens=3):  # until all chunks have arrived
            await asyncio.sleep(0.001)
        started, chunk, finished = [event async for event in call.events()]
    assert (type(started), type(finished)) == (ResponseStart, ResponseEnd)
    assert chunk == Chunk(b"data: 0 m\n\ndata: 1 m\n\ndata: 2 m\n\n")


async def test_leaving_early_cancels_in_the_engine(slot: Slot) -> None:
    await slot.load()
    slot.engine.gate.clear()
    async with slot.link.call(lambda uid: frames.Call.of(uid, CALL)) as call:
        events = call.events()
        assert isinstance(await anext(events), ResponseStart)
    assert slot.engine.cancelled == ["m"]  # the call ends only after the engine has stopped
    assert slot.engine.running == 0
    assert call.usage == Usage(prompt_tokens=2)


@pytest.mark.parametrize("how", ["left", "revoked"])
async def test_a_call_that_is_cancelled_before_the_slot_begins_it_ends(slot: Slot, how: str) -> None:
    """A busy slot reads a call and its cancellation together."""
    await slot.load()
    async with asyncio.timeout(LEAVE_SECONDS / 2), slot.link.call(lambda uid: frames.Call.of(uid, CALL)) as call:
        if how == "revoked":
            call.stop(Unavailable("revoked"))
            with pytest.raises(Unavailable, match="revoked"):
                await call.next()
    assert slot.engine.running == 0


INFO = TranscriptInfo(language="en", language_probability=1.0, duration=90.0, duration_after_vad=90.0)


@pytest.mark.parametrize("fails", [False, True], ids=["left", "failed"])
async def test_transcribed_audio_is_counted_for_every_kind_of_end(
    slot: Slot, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    async def transcribe(request: TranscribeRequest) -> AsyncGenerator[TranscriptInfo | Usage, None]:
        yield Usage(audio_seconds=30.0)
        yield Usage(audio_seconds=60.0)
        yield INFO
        if fails:
            raise EngineFailed("broken")
        await asyncio.Event().wait()

    monkeypatch.setattr(slot.engine, "transcribe", transcribe, raising=False)
    await slot.load(SPEECH)
    async with slot.link.call(lambda uid: frames.Call.of(uid, TranscribeRequest(path="x"))) as call:
        events = call.events()
        assert await anext(events) == INFO
        if fails:
            assert isinstance(await anext(events), ResponseEnd)
            with pytest.raises(EngineFailed, match="broken"):
                await anext(events)
    assert call.usage == Usage(audio_seconds=60.0)


async def test_a_call_failed_by_the_gateway_is_cancelled_in_the_engine(slot: Slot) -> None:
    """The drain deadline does this, so that a following sleep finds no request."""
    slot.engine.asleep = MemoryFootprint(device_bytes=5, host_bytes=90)
    await slot.load()
    slot.engine.gate.clear()
    async with slot.link.call(lambda uid: frames.Call.of(uid, CALL)) as call:
        events = call.events()
        await anext(events)
        call.fail(Unavailable("The model was unloaded.", code="drained"))
        with pytest.raises(Unavailable, match="was unloaded"):
            await anext(events)
    assert await slot.link.command(frames.Sleep, 200) == slot.engine.asleep
    assert slot.engine.cancelled == ["m"]


async def test_an_error_keeps_its_class_and_message(slot: Slot) -> None:
    slot.engine.load_error = Unfit("bad weights", ["a", "b"])
    with pytest.raises(Unfit, match="bad weights"):
        await slot.load()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA failed with error out of memory"),  # CTranslate2
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),  # torch, for a context
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
async def test_out_of_memory_has_its_own_code(slot: Slot, error: Exception) -> None:
    slot.engine.load_error = EngineFailed(f"m could not be loaded: {error}")
    slot.engine.load_error.__cause__ = error
    with pytest.raises(EngineFailed) as refused:
        await slot.load()
    assert refused.value.code == "out_of_memory"


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), BlockingIOError(11, "unavailable")])
async def test_a_limit_of_processes_is_named(slot: Slot, error: Exception) -> None:
    slot.engine.load_error = EngineFailed("the engine did not start")
    slot.engine.load_error.__cause__ = error
    with pytest.raises(EngineFailed, match="raise ulimit -u"):
        await slot.load()


async def test_calls_before_a_load_are_refused(slot: Slot) -> None:
    with pytest.raises(EngineFailed, match="No model is loaded"):
        await slot.link.command(lambda uid: frames.Ping(uid), 200)


@asynccontextmanager
async def begun(slot: Slot) -> AsyncIterator[AsyncIterator[Event | Progress]]:
    """Yield the events of a call whose answer has begun and then pauses."""
    await slot.load()
    slot.engine.gate.clear()
    async with slot.link.call(lambda uid: frames.Call.of(uid, CALL)) as call:
        events = call.events()
        await anext(events)
        yield events


async def test_a_lost_slot_ends_its_calls_and_reports_its_death(slot: Slot) -> None:
    async with begun(slot) as events:
        slot.server._writers.pop().close()
        with pytest.raises(Unavailable, match="died while it was answering"):
            await anext(events)
    assert slot.deaths == [slot.link]
    with pytest.raises(Unavailable, match="being restarted"):
        slot.link.call(lambda uid: frames.Ping(uid))


async def test_a_slot_that_stops_completes_no_answer(slot: Slot) -> None:
    """As by a guard against lack of memory, which sends SIGTERM first."""
    async with begun(slot) as events:
        slot.server._stop.set()
        await slot.server.close()
        await asyncio.sleep(0.01)
        slot.server._writers.pop().close()  # as when its process exits
        with pytest.raises(Unavailable, match="died while it was answering"):
            [event async for event in events]


async def test_an_engine_that_ends_by_itself_is_reported_at_once_and_its_calls_end(slot: Slot) -> None:
    """The calls end before they fail by themselves, with an error that allows a retry."""
    async with begun(slot) as events:
        slot.engine.on_broken(EngineFailed("its child was ended by SIGKILL", code="killed_child"))
        with pytest.raises(Unavailable, match=r"answering \(its child was ended by SIGKILL\)") as error:
            await anext(events)
    assert (error.value.code, error.value.retry_after) == ("engine_died", 1.0)
    assert slot.deaths == [slot.link]
    assert slot.link.cause.text == "its child was ended by SIGKILL"
    assert not slot.link.connected


async def test_an_engine_that_ends_during_a_sleep_fails_the_sleep(slot: Slot) -> None:
    slot.engine.asleep = MemoryFootprint(device_bytes=5)
    await slot.load()
    slot.engine.sleep_gate.clear()
    slot.engine.sleep_error = EngineFailed("its child was ended")
    sleeping = asyncio.create_task(slot.link.command(frames.Sleep, 200))
    while not slot.server._changing:
        await asyncio.sleep(0.001)
    slot.engine.on_broken(slot.engine.sleep_error)
    slot.engine.sleep_gate.set()
    with pytest.raises(EngineFailed, match="its child was ended"):
        await sleeping
    assert slot.deaths == []


async def test_adapters_are_staged_placed_and_dropped(slot: Slot) -> None:
    await slot.load()
    a = AdapterRef(digest="sha256:" + "a" * 64, path="/a", rank=8, bytes=1)
    await slot.link.command(lambda uid: frames.Stage(uid, a), 200)
    await slot.link.command(lambda uid: frames.Place(uid, a, None), 200)
    assert slot.engine.places == {a.digest}
    await slot.link.command(lambda uid: frames.Drop(uid, a.digest), 200)
    assert slot.engine.dropped == [a.digest]


async def test_garbage_on_the_wire_ends_the_connection(tmp_path: Path) -> None:
    slot = Slot(str(tmp_path / "g.sock"))
    task = asyncio.create_task(slot.server.serve())
    while not (tmp_path / "g.sock").exists():
        await asyncio.sleep(0.001)
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "g.sock"))
    await frames.read_frames(reader, frames.from_slot_decoder)
    writer.write(frames.LENGTH.pack(4) + b"\x80abc")
    assert await reader.read() == b""
    slot.server._stop.set()
    await task


async def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frames.LENGTH.pack(frames.MAX_MESSAGE + 1))
    with pytest.raises(ConnectionError, match="over the limit"):
        await frames.read_frames(reader, frames.to_slot_decoder)


async def test_frames_of_one_tick_may_exceed_the_size_of_a_message(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens, in both directions, when many large requests have waited for a model."""
    monkeypatch.setattr(frames, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(frames, "MAX_MESSAGE", 2000)
    await slot.load()
    slot.engine.gate.clear()

    async def ask(number: int) -> list[bytes]:
        call = HttpCall(path="/", body=b"x" * 400, served="m", display_name=f"{number} " + "y" * 400)
        async with slot.link.call(lambda uid: frames.Call.of(uid, call)) as answer:
            data = b"".join([event.data async for event in answer.events() if isinstance(event, Chunk)])
            return data.split(b"\n\n")[:-1]

    requested = [asyncio.create_task(ask(number)) for number in range(20)]
    while slot.engine.running < 20:
        assert not any(task.done() for task in requested)
        await asyncio.sleep(0.001)
    slot.engine.gate.set()
    for number, chunks in enumerate(await asyncio.gather(*requested)):
        assert [chunk[: 8 + len(str(number))] for chunk in chunks] == [b"data: %d %d" % (i, number) for i in range(3)]


async def test_an_engine_sleeps_and_wakes(slot: Slot) -> None:
    slot.engine.asleep = MemoryFootprint(device_bytes=5, host_bytes=90)
    await slot.load()
    assert await slot.link.command(frames.Sleep, 200) == MemoryFootprint(device_bytes=5, host_bytes=90)
    for frame in (lambda uid: frames.Call.of(uid, CALL), lambda uid: frames.Drop(uid, "x"), frames.Sleep):
        with pytest.raises(EngineFailed, match="asleep"):
            await slot.link.command(frame, 200)
    await slot.link.command(frames.Ping, 200)
    assert await slot.link.command(frames.Wake, 200) == MemoryFootprint(device_bytes=100, host_bytes=90)
    with pytest.raises(EngineFailed, match="awake"):
        await slot.link.command(frames.Wake, 200)
    await slot.link.command(lambda uid: frames.Call.of(uid, CALL), 200)


async def test_a_sleep_waits_for_running_calls_and_refuses_new_ones(slot: Slot) -> None:
    slot.engine.asleep = MemoryFootprint(device_bytes=5)
    await slot.load()
    slot.engine.gate.clear()
    running = asyncio.create_task(slot.link.command(lambda uid: frames.Call.of(uid, CALL), 200))
    while not slot.engine.running:
        await asyncio.sleep(0.001)
    sleeping = asyncio.create_task(slot.link.command(frames.Sleep, 200))
    while not slot.server._changing:
        await asyncio.sleep(0.001)
    with pytest.raises(EngineFailed, match="asleep"):
        await slot.link.command(lambda uid: frames.Call.of(uid, CALL), 200)
    assert not slot.engine.sleeps
    slot.engine.gate.set()
    await running
    await sleeping
    assert slot.engine.sleeps


async def test_a_sleep_continues_without_its_caller_and_the_slot_answers_pings(slot: Slot) -> None:
    slot.engine.asleep = MemoryFootprint(device_bytes=5)
    await slot.load()
    slot.engine.sleep_gate.clear()
    slot.engine.ping_gate.clear()  # the engine itself does not answer
    caller = asyncio.create_task(slot.link.command(frames.Sleep, 200))
    while not slot.server._changing:
        await asyncio.sleep(0.001)
    await slot.link.command(frames.Ping, 200)
    with pytest.raises(EngineFailed, match="busy"):
        await slot.link.command(frames.Sleep, 200)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    slot.engine.sleep_gate.set()
    while not slot.server._asleep:
        await asyncio.sleep(0.001)
    assert slot.engine.sleeps
