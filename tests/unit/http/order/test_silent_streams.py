"""A silent stream, such as while a long tool call is written, keeps its connection by pings or comments."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from models.messages import Chunk, Event, ResponseEnd, ResponseStart, Usage
from runtime.http import sending
from runtime.http.dialect import Head
from tests.unit.http.fakes import FakeGateway, Wire, application

BODY = json.dumps({"model": "chat", "messages": [], "stream": True}).encode()
FIRST, LAST = b"event: a\ndata: {}\n\n", b"event: b\ndata: {}\n\n"


class Listener(Wire):
    """Opens the engine's gate after the third part of the body: the first event and two pings or comments."""

    gateway: FakeGateway

    async def send(self, message: Any) -> None:
        await super().send(message)
        if len([message for message in self.sent if message.get("body")]) == 3:
            self.gateway.links["chat"].gate.set()


async def stream_with_silence(folder: Path, path: str, first: bytes) -> bytes:
    gateway = FakeGateway(folder)
    link = gateway.links["chat"]
    events: Sequence[Event] = [
        ResponseStart(status=200, content_type="text/event-stream"), Chunk(data=first), Chunk(data=LAST),
        ResponseEnd(usage=Usage()),
    ]  # fmt: skip
    link.script = lambda _: events
    link.free = 2
    link.gate.clear()
    wire = Listener(application(gateway), path, [BODY], {"content-type": "application/json"})
    wire.gateway = gateway
    await asyncio.wait_for(wire.run(), 200)
    return b"".join(message.get("body", b"") for message in wire.sent)


@pytest.mark.parametrize(
    ("path", "keeps"),
    [
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
        ("/v1/chat/completions", b": keep-alive\n\n"),
        ("/v1/responses", b": keep-alive\n\n"),
    ],
)
async def test_silence_is_filled_in_the_way_of_each_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, keeps: bytes
) -> None:
    monkeypatch.setattr(sending, "SILENCE_SECONDS", 0.0)
    text = await stream_with_silence(tmp_path, path, FIRST)
    assert text.startswith(FIRST + keeps)
    assert text.endswith(LAST)
    assert text.replace(keeps, b"") == FIRST + LAST, "nothing else, and never inside an event"


async def test_no_comment_is_written_inside_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SILENCE_SECONDS", 0.0)
    sent: list[bytes] = []

    async def parts() -> Any:
        yield Head(200, "text/event-stream")
        for half in (b"data: ", b"1\n\n"):
            yield half
            for _ in range(20):  # turns of the loop in which a ping could come
                await asyncio.sleep(0)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    await sending.Answer(parts())({"type": "http"}, receive, send)
    assert sending.COMMENT in sent
    assert b"".join(sent).replace(sending.COMMENT, b"") == b"data: 1\n\n"
    assert b"data: 1" in b"".join(sent)
