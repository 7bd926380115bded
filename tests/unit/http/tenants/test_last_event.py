"""The last event of an answer is sent after its end is in the ledger, so that a kill between them loses nothing."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from models.messages import Chunk, Event
from registry.errors import EngineFailed
from tenants.ledger.table import LedgerTable
from tests.unit.http.audio.script import SCRIPT, WAV
from tests.unit.http.fakes import Wire
from tests.unit.http.tenants.test_usage import BODY, END, PATH, STREAM, LedgerRig, limiter, rig

__all__ = ["limiter", "rig"]


def event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


WORD, DONE = {"choices": [{"delta": {"content": "a"}}]}, b"data: [DONE]\n\n"
FINISH = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
TOKEN: dict[str, Any] = {"text": "a", "token_ids": [5], "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}}
LAST = {**TOKEN, "finish_reason": "length"}
STREAMS = {
    "/v1/chat/completions": (event(WORD) + event(FINISH) + DONE, DONE),
    "/v1/messages": (
        event({"type": "message_delta"}, "message_delta") + event({}, "message_stop") + DONE,
        event({}, "message_stop") + DONE,
    ),
    "/v1/responses": (event({}, "response.created") + event({}, "response.completed"), b"event: response.completed"),
    "/v2/chat": (event(WORD) + event(FINISH) + DONE, b"event: message-end"),
    "/api/chat": (event(WORD) + event(FINISH) + DONE, b'{"model":"chat"'),
    "/generate_stream": (event({"choices": [TOKEN]}) + event({"choices": [LAST]}) + DONE, b'data:{"index":2'),
}
"""The engine's data by path, and how the last event, which is delayed, begins."""


class Gate:
    """Delays the ledger's writes of ends until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, write = threading.Event(), LedgerTable.write

        def gated(table: LedgerTable, begun: Sequence[Any], ended: Sequence[Any], *, again: bool = False) -> None:
            if ended:
                self.open.wait()
            write(table, begun, ended, again=again)

        monkeypatch.setattr(LedgerTable, "write", gated)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def wire_of(rig: LedgerRig, path: str, data: bytes = b"") -> Wire:
    rig.gateway.links["chat"].script = lambda _: [STREAM, Chunk(data=data), END]
    requested = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "stream": True, "inputs": "a"}
    return Wire(rig.app, path, [json.dumps(requested).encode()])


def sent(wire: Wire) -> bytes:
    return b"".join(message.get("body", b"") for message in wire.sent)


async def received_before_and_after_the_write(rig: LedgerRig, gate: Gate, wire: Wire) -> tuple[bytes, bytes]:
    """Return what the client receives before the end of its request is written, and what afterwards."""
    task = asyncio.create_task(wire.run())
    try:
        while not rig.gateway.records.all:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        before = sent(wire)
        assert [row.state for row in rig.rows()] == ["open"]
    finally:
        gate.open.set()
    await task
    (row,) = rig.rows()
    assert (row.state, row.end) == ("settled", "done")
    return before, sent(wire)[len(before) :]


@pytest.mark.parametrize("path", STREAMS)
async def test_only_the_last_event_waits_for_the_ledger(rig: LedgerRig, gate: Gate, path: str) -> None:
    data, expected = STREAMS[path]
    before, last_event = await received_before_and_after_the_write(rig, gate, wire_of(rig, path, data))
    assert before
    assert last_event.startswith(expected)


async def test_without_keys_and_limits_no_event_waits(rig: LedgerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are not billed there, so the engine's data is passed on at once, the last event included."""
    sink: Any = rig.gateway.gateway._ledger
    monkeypatch.setattr(sink, "_is_lenient", lambda: True)
    link, wire = rig.gateway.links["chat"], wire_of(rig, PATH)
    link.script = lambda _: [STREAM, Chunk(data=event(FINISH) + DONE), END]
    link.gate.clear()
    link.free = 2
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    assert [message["body"] for message in wire.sent if message.get("body")] == [event(FINISH) + DONE]
    link.gate.set()
    await task
    await rig.ledger.flush()
    assert [row.end for row in rig.rows()] == ["done"]


async def test_the_last_event_of_a_transcript_waits_too(rig: LedgerRig, gate: Gate) -> None:
    rig.gateway.links["speech"].script = lambda _: SCRIPT
    form = httpx.Request("POST", "http://test", data={"model": "speech", "stream": "true"}, files={"file": WAV})
    wire = Wire(rig.app, "/v1/audio/transcriptions", [form.read()], dict(form.headers))
    before, last_event = await received_before_and_after_the_write(rig, gate, wire)
    assert before.count(b"transcript.text.delta") == 2
    assert last_event.startswith(b'data: {"type":"transcript.text.done"')


async def test_an_answer_that_is_no_stream_waits_as_a_whole(rig: LedgerRig, gate: Gate) -> None:
    """With an HTTP/1.0 proxy only the end of the connection would mark the answer's end."""
    wire = Wire(rig.app, PATH, [json.dumps(BODY).encode()])
    started = STREAM.__class__(status=200, content_type="application/json")
    rig.gateway.links["chat"].script = lambda _: [started, Chunk(data=b'{"id":'), Chunk(data=b"1}"), END]
    assert await received_before_and_after_the_write(rig, gate, wire) == (b"", b'{"id":1}')


async def test_events_are_sent_while_the_engine_works(rig: LedgerRig) -> None:
    link = rig.gateway.links["chat"]
    wire = wire_of(rig, PATH)
    link.script = lambda _: [STREAM, Chunk(data=event(WORD)), Chunk(data=DONE), END]
    link.gate.clear()
    link.free = 2
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    assert sent(wire) == event(WORD)
    link.gate.set()
    await task
    assert sent(wire) == event(WORD) + DONE


@pytest.mark.parametrize("end", [EngineFailed("it broke"), None])
async def test_an_answer_without_an_end_is_sent_without_its_last_event(
    rig: LedgerRig, end: EngineFailed | None
) -> None:
    """The engine fails, or the client leaves, between the last event and the end."""
    link, wire = rig.gateway.links["chat"], wire_of(rig, PATH)
    events: list[Event | EngineFailed] = [STREAM, Chunk(data=event(WORD) + DONE)]
    link.script = lambda _: [*events, END if end is None else end]
    link.gate.clear()
    link.free = 2
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    (wire.leave if end is None else link.gate).set()
    await task
    await rig.gateway.gateway.flush()
    (row,) = rig.rows()
    assert DONE not in sent(wire)
    assert row.end == ("cancelled" if end is None else "failed")
