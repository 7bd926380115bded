"""The outermost layer: context and gateway of each request, startup and shutdown."""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import BadRequest, RoundhouseError
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http.errors import REQUEST_ID, Dialect, error_response
from runtime.http.hints import context_of_headers, with_caller
from tenants.caller import Caller

_SANE_ID = re.compile(r"^[A-Za-z0-9._:/-]{1,128}\Z")
NODE = "X-Roundhouse-Node"
"""Header that names the server of a fleet that answered."""
_NODE = NODE.lower().encode()
_CONTEXT, _GATEWAY, _SEND = "roundhouse.context", "roundhouse.gateway", "roundhouse.send"


def context_of(scope: Scope) -> RequestContext:
    context: RequestContext = scope[_CONTEXT]
    return context


def set_caller(scope: Scope, caller: Caller) -> None:
    """Set the caller. Call it before the context is read."""
    scope[_CONTEXT] = with_caller(context_of(scope), caller)


def set_context(scope: Scope, context: RequestContext) -> None:
    """Set the context. Call it before it is read."""
    scope[_CONTEXT] = context


def gateway_of(scope: Scope) -> Gateway:
    gateway: Gateway = scope[_GATEWAY]
    return gateway


def body_sender(scope: Scope, send: Send) -> Send:
    """Return a function that sends pieces of a body past the layers, which only handle its start.

    Each layer would cost one call per token. send: used if there are no layers.
    """
    sender: Send = scope.get(_SEND, send)
    return sender


async def _gateway(request: Request) -> Gateway:
    return gateway_of(request.scope)


CurrentGateway = Annotated[Gateway, Depends(_gateway)]
"""Parameter of handlers that need the gateway."""


async def _context(request: Request) -> RequestContext:
    return context_of(request.scope)


CurrentContext = Annotated[RequestContext, Depends(_context)]


def _request_id(scope: Scope) -> str:
    """The client's X-Request-Id if it is valid, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.match(text := value.decode("latin-1")):
            return str(text)
    return f"req-{secrets.token_hex(12)}"


class ContextMiddleware:
    """Pure ASGI middleware. Adds X-Request-Id to every response.

    Args:
        gateway: returns the gateway; called for each request.
        dialect_of: returns the dialect of a path's errors. A parameter because the routes import this module.
        start, stop: run with the application's lifespan, before the first request and after the last response.
        node: this server's name in its fleet, for the answer's header. None without a fleet.
    """

    def __init__(
        self,
        app: ASGIApp,
        gateway: Callable[[], Gateway],
        dialect_of: Callable[[str], Dialect],
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
        node: Callable[[], str] | None = None,
    ) -> None:
        self.app, self._gateway, self._dialect_of, self._start, self._stop = app, gateway, dialect_of, start, stop
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # answered like GET; uvicorn sends no body
            scope = {**scope, "method": "GET"}
        request_id = _request_id(scope)
        REQUEST_ID.set(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [header for header in message["headers"] if header[0] != b"x-request-id"]
                headers.append((b"x-request-id", request_id.encode()))
                if self._node is not None and _NODE not in dict(headers):
                    headers.append((_NODE, self._node().encode()))
                if scope["path"].startswith("/v1/messages"):  # the header that Anthropic's clients read
                    headers.append((b"request-id", request_id.encode()))
                message["headers"] = headers
            await send(message)

        try:
            scope[_CONTEXT] = context_of_headers(request_id, scope["headers"])
        except BadRequest as error:
            await error_response(error, self._dialect_of(scope["path"]))(scope, receive, send_with_id)
            return
        scope[_GATEWAY], scope[_SEND] = self._gateway(), send
        await self.app(scope, receive, send_with_id)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_and_stop() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._stop()
            return message

        refused: list[str] = []

        async def start_and_send(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self._start()
                except (RoundhouseError, OSError) as error:
                    refused.append(str(error))
                    raise
            elif message["type"] == "lifespan.startup.failed" and refused:
                message = {**message, "message": refused[0]}  # replaces the traceback that Starlette puts there
            await send(message)

        await self.app(scope, receive_and_stop, start_and_send)
