"""A stream that is silent, as while a long call is written, keeps its connection: by a ping or a comment."""

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
    """Opens the engine's gate after the third piece of a body: the first event, and two that keep the connection."""

    gateway: FakeGateway

    async def send(self, message: Any) -> None:
        await super().send(message)
        if len([one for one in self.sent if one.get("body")]) == 3:
            self.gateway.links["chat"].gate.set()


async def listened(folder: Path, path: str, first: bytes) -> bytes:
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
async def test_each_dialect_in_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, keeps: bytes
) -> None:
    monkeypatch.setattr(sending, "SILENCE_SECONDS", 0.0)
    text = await listened(tmp_path, path, FIRST)
    assert text.startswith(FIRST + keeps)
    assert text.endswith(LAST)
    assert text.replace(keeps, b"") == FIRST + LAST, "nothing else, and never inside an event"


async def test_half_an_event_is_not_torn(monkeypatch: pytest.MonkeyPatch) -> None:
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
