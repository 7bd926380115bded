"""What the application gets of a body: its bytes as decoded, up to the path's bound, or up to bounds of its own."""

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from registry.errors import TooLarge
from runtime.http.guard import bodies
from runtime.http.guard.bodies import BodyMiddleware, BodyPace
from runtime.http.guard.memory import BodyMemory
from tenants.caller import ANONYMOUS, Caller

MOST = 10
MULTIPART = {b"content-type": b"Multipart/form-data; boundary=b"}


class Application:
    """Reads the whole body. `seen` has its headers, `error` the refusal."""

    def __init__(self, caller: Caller, most: int = MOST) -> None:
        self.seen: Scope = {}
        self.error: TooLarge | None = None
        self.caller, self.memory = caller, BodyMemory(2**30, 2**30)
        self.held = 0
        self._guard = BodyMiddleware(self, BodyPace(200.0, 1), lambda path: most, self.memory, 1000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen = scope
        self.body, more = b"", True
        try:
            while more:
                message = await receive()
                self.body, more = self.body + message["body"], message["more_body"]
        except TooLarge as error:
            self.error = error
        self.held = self.memory.held

    async def post(
        self, monkeypatch: pytest.MonkeyPatch, path: str, *parts: bytes, headers: dict[bytes, bytes] | None = None
    ) -> bool:
        """Return whether the application got all of a body."""
        arriving = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        arriving[-1]["more_body"] = False
        monkeypatch.setattr(bodies, "context_of", lambda scope: SimpleNamespace(caller=self.caller))

        async def receive() -> Message:
            await asyncio.sleep(0)
            return arriving.pop(0)

        async def send(message: Message) -> None:
            pass

        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "client": ("127.0.0.1", 5)}
        await self._guard({**scope, "headers": list((headers or {}).items())}, receive, send)
        assert self.memory.held == 0
        return self.error is None


async def test_a_decoded_body_has_neither_its_coding_nor_its_encoded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, app = gzip.compress(b"{}"), Application(Caller(), most=100)
    headers = {b"content-encoding": b"gzip", b"content-length": b"%d" % len(packed), b"content-type": b"text/plain"}
    assert await app.post(monkeypatch, "/v1/embeddings", packed[:5], packed[5:], headers=headers)
    assert (app.body, app.seen["headers"]) == (b"{}", [(b"content-type", b"text/plain")])
    del headers[b"content-encoding"]
    assert await app.post(monkeypatch, "/v1/embeddings", b"{}", headers=headers)
    assert dict(app.seen["headers"]) == headers


@pytest.mark.parametrize("headers", [{}, MULTIPART])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/files", "/v1/adapters", "/v1/messages/batches", "/v1/batch"])
async def test_forms_and_streamed_bodies_have_bounds_of_their_own(
    monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[bytes, bytes]
) -> None:
    is_on_disk = path in ("/v1/messages/batches", "/v1/batch") or (headers and path in ("/v1/files", "/v1/adapters"))
    for size in (MOST, MOST + 1):
        app = Application(Caller())
        assert await app.post(monkeypatch, path, b"1" * 5, b"1" * (size - 5), headers=headers) == (
            is_on_disk or size == MOST
        )
        assert bool(app.held) != bool(is_on_disk), "only bodies in memory count there"


@pytest.mark.parametrize(("caller", "most"), [(ANONYMOUS, bodies.NO_KEY_BYTES), (Caller(), 2**20)])
async def test_a_body_without_a_key_has_a_small_bound(
    monkeypatch: pytest.MonkeyPatch, caller: Caller, most: int
) -> None:
    for size in (most, most + 1):
        app = Application(caller, most=2**20)
        assert await app.post(monkeypatch, "/v1/embeddings", b"1" * size) == (size == most)
