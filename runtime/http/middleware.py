"""The outermost ASGI layer: request ids, the gateway's start and stop, and a last net for errors."""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.gateway.prefer import PREFERENCE, parse

_SANE_ID = re.compile(r"^[A-Za-z0-9._:/-]{1,128}\Z")


def request_id(scope: Scope) -> str:
    """The client's X-Request-Id if it is sane, else a new one; the same for the whole request."""
    found = scope.get("roundhouse_request_id")
    if isinstance(found, str):
        return found
    for name, value in scope.get("headers", ()):
        if name == b"x-request-id" and _SANE_ID.match(text := value.decode("latin-1")):
            scope["roundhouse_request_id"] = text
            return str(text)
    scope["roundhouse_request_id"] = made = f"req-{secrets.token_hex(12)}"
    return made


class Shell:
    """Pure ASGI: adds X-Request-Id to every response, and runs `start` and `stop` with the application's lifespan."""

    def __init__(self, app: ASGIApp, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> None:
        self.app, self._start, self._stop = app, start, stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number = request_id(scope)
        PREFERENCE.set(parse(scope["headers"]))

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = number
            await send(message)

        await self.app(scope, receive, with_id)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_and_stop() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._stop()
            return message

        async def start_and_send(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._start()
            await send(message)

        await self.app(scope, receive_and_stop, start_and_send)
