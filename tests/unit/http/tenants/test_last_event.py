"""No client has a whole answer before the ledger has its end: a server that is killed between them cannot miss it."""

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
from tests.unit.http.tenants.test_usage import BODY, END, PATH, STREAM, LedgerRig, kept, limiter

__all__ = ["kept", "limiter"]


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
"""What the engine says, and how what is held back begins."""


class Gate:
    """Ends of requests are not written until it opens."""

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


def wire_of(kept: LedgerRig, path: str, data: bytes = b"") -> Wire:
    kept.gateway.links["chat"].script = lambda _: [STREAM, Chunk(data=data), END]
    requested = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "stream": True, "inputs": "a"}
    return Wire(kept.app, path, [json.dumps(requested).encode()])


def sent(wire: Wire) -> bytes:
    return b"".join(message.get("body", b"") for message in wire.sent)


async def seen_before_the_end(kept: LedgerRig, gate: Gate, wire: Wire) -> tuple[bytes, bytes]:
    """What the client has while the end of its request is not written; what comes then."""
    task = asyncio.create_task(wire.run())
    try:
        while not kept.gateway.records.all:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        before = sent(wire)
        assert [row.state for row in kept.rows()] == ["open"]
    finally:
        gate.open.set()
    await task
    (row,) = kept.rows()
    assert (row.state, row.end) == ("settled", "done")
    return before, sent(wire)[len(before) :]


@pytest.mark.parametrize("path", STREAMS)
async def test_the_last_event_waits_for_the_ledger_and_no_other(kept: LedgerRig, gate: Gate, path: str) -> None:
    data, last = STREAMS[path]
    before, held = await seen_before_the_end(kept, gate, wire_of(kept, path, data))
    assert before
    assert held.startswith(last)


async def test_without_keys_and_limits_no_event_waits(kept: LedgerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is nobody's bill there: what the engine says in one piece leaves in one, while the engine works on."""
    sink: Any = kept.gateway.gateway._ledger
    monkeypatch.setattr(sink, "_is_lenient", lambda: True)
    link, wire = kept.gateway.links["chat"], wire_of(kept, PATH)
    link.script = lambda _: [STREAM, Chunk(data=event(FINISH) + DONE), END]
    link.gate.clear()
    link.free = 2
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    assert [message["body"] for message in wire.sent if message.get("body")] == [event(FINISH) + DONE]
    link.gate.set()
    await task
    await kept.ledger.flush()
    assert [row.end for row in kept.rows()] == ["done"]


async def test_a_transcripts_last_event_waits_too(kept: LedgerRig, gate: Gate) -> None:
    kept.gateway.links["speech"].script = lambda _: SCRIPT
    form = httpx.Request("POST", "http://test", data={"model": "speech", "stream": "true"}, files={"file": WAV})
    wire = Wire(kept.app, "/v1/audio/transcriptions", [form.read()], dict(form.headers))
    before, held = await seen_before_the_end(kept, gate, wire)
    assert before.count(b"transcript.text.delta") == 2
    assert held.startswith(b'data: {"type":"transcript.text.done"')


async def test_an_answer_that_is_no_stream_waits_as_a_whole(kept: LedgerRig, gate: Gate) -> None:
    """Where a proxy speaks HTTP/1.0, its end would be told by nothing but the connection's."""
    wire = Wire(kept.app, PATH, [json.dumps(BODY).encode()])
    started = STREAM.__class__(status=200, content_type="application/json")
    kept.gateway.links["chat"].script = lambda _: [started, Chunk(data=b'{"id":'), Chunk(data=b"1}"), END]
    assert await seen_before_the_end(kept, gate, wire) == (b"", b'{"id":1}')


async def test_events_come_while_the_engine_works(kept: LedgerRig) -> None:
    link = kept.gateway.links["chat"]
    wire = wire_of(kept, PATH)
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
async def test_an_answer_whose_end_did_not_come_is_not_whole(kept: LedgerRig, end: EngineFailed | None) -> None:
    """Between its last event and its end the engine fails, or the client leaves."""
    link, wire = kept.gateway.links["chat"], wire_of(kept, PATH)
    events: list[Event | EngineFailed] = [STREAM, Chunk(data=event(WORD) + DONE)]
    link.script = lambda _: [*events, END if end is None else end]
    link.gate.clear()
    link.free = 2
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    (wire.leave if end is None else link.gate).set()
    await task
    await kept.gateway.gateway.flush()
    (row,) = kept.rows()
    assert DONE not in sent(wire)
    assert row.end == ("cancelled" if end is None else "failed")
