"""A scripted provider on a real socket, which gives OpenAI's and Anthropic's answers and fails in every way."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

HANG = object()
"""Part of a play: send nothing more until the client leaves or the fake ends."""
CUT = object()
"""Part of a play: break the connection."""
GATE = object()
"""Part of a play: wait for `gate` before the rest."""


@dataclass
class Seen:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: Any
    """Decoded JSON, or the bytes of a form."""
    query: str = ""


@dataclass
class Play:
    """A scripted answer. `parts` are bytes, HANG, CUT or GATE, or a function that yields endless ones."""

    parts: list[Any] | Callable[[], Iterator[Any]] = field(default_factory=list)
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


Script = Callable[[Seen], Play]


class ProviderFake:
    """The fake. `script` returns the answer of a request, `seen` has all requests.

    `left` is set when a client leaves in the middle of an answer.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.left = asyncio.Event()
        self.arrived = asyncio.Event()
        self.gate = asyncio.Event()
        self.sent_bytes = 0
        self.port = 0
        self._over = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        is_json = request.content_type == "application/json" and raw
        headers = {k.lower(): v for k, v in request.headers.items()}
        seen = Seen(request.path, headers, json.loads(raw) if is_json else raw, request.query_string)
        self.seen.append(seen)
        self.arrived.set()
        play = self.script(seen)
        parts = play.parts() if callable(play.parts) else iter(play.parts)
        first = next(parts, b"")
        if first is HANG:
            await self._hang()
            raise web.HTTPServiceUnavailable
        response = web.StreamResponse(status=play.status, headers={"content-type": play.content_type, **play.headers})
        try:
            await response.prepare(request)
            for part in (p for some in ([first], parts) for p in some):
                if part is HANG:
                    await self._hang()
                    return response
                if part is CUT:
                    assert request.transport is not None
                    request.transport.close()
                    return response
                if part is GATE:
                    await self.gate.wait()
                    continue
                await response.write(part)
                self.sent_bytes += len(part)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return response

    async def _hang(self) -> None:
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


@asynccontextmanager
async def provider_fake(script: Script) -> AsyncIterator[ProviderFake]:
    fake = ProviderFake(script)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", fake._answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.port = runner.addresses[0][1]
    try:
        yield fake
    finally:
        fake._over.set()
        await runner.cleanup()
