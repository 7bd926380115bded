"""Sends the parts of an answer as an HTTP response, and cancels the work when the client leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from models import sse
from registry.errors import RoundhouseError
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http import errors as http_errors
from runtime.http.bodies import read_body
from runtime.http.dialect import EVENT_STREAM, Endpoint, Head, Parts
from runtime.http.errors import Dialect, error_response
from runtime.http.middleware import body_sender, context_of, gateway_of
from runtime.http.serving import serve

Handler = Callable[[Request], Awaitable[Response]]
Serve = Callable[[Gateway, RequestContext, Endpoint, bytes, Mapping[str, str]], Parts]
"""Answers a body: `serving.serve`, or a path's own function around it, which may raise RoundhouseError."""


def handler(endpoint: Endpoint, serve: Serve = serve) -> Handler:
    """FastAPI's handler for an inference path with a JSON body."""

    async def handle(request: Request) -> Response:
        gateway, context = gateway_of(request.scope), context_of(request.scope)
        try:
            body = await read_body(request, gateway.services.settings.max_json)
            query = request.query_params if request.scope["query_string"] else {}
            return Answer(serve(gateway, context, endpoint, body, query), endpoint.dialect)
        except RoundhouseError as error:
            with gateway.record(context, endpoint.path) as record:
                record.failed(error, http_errors.status(error, endpoint.dialect))
            return error_response(error, endpoint.dialect)
        except ClientDisconnect:
            with gateway.record(context, endpoint.path) as record:
                record.client_disconnected()
            raise

    return handle


def as_asgi(handle: Handler) -> ASGIApp:
    """Wrap a handler for Starlette, without FastAPI's parameters and exit stacks.

    They would cost a request as much as the whole guard.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await handle(Request(scope, receive, send))
        except ClientDisconnect:
            response = Response(status_code=499)  # the client has left
        await response(scope, receive, send)

    return app


class DirectLayer:
    """Innermost ASGI layer, which answers `POST` of some paths without Starlette's router.

    The router and its layers would keep seven coroutines per stream, and be called for each token.

    Args:
        handlers: by path, from `as_asgi`. They answer errors themselves.
    """

    def __init__(self, app: ASGIApp, handlers: Mapping[str, ASGIApp]) -> None:
        self._app, self._handlers = app, handlers

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine, since one per layer would stay in memory as long as a stream runs."""
        handle = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        return (handle or self._app)(scope, receive, send)


SILENCE_SECONDS = 7.5
"""Streams send something at least every 15 seconds, even while the model writes a long tool call that is sent in one
piece, because clients and proxies close connections that are silent for longer."""
ENDS = (b"\n\n", b"\r\n\r\n")
COMMENT = b": keep-alive\n\n"
PING = sse.event({"type": "ping"}, "ping")


class Answer(Response):
    """Sends parts as they arrive. A disconnect cancels the work that produces them.

    While an event stream is silent, it sends Anthropic's ping or a comment to keep the connection alive.
    """

    def __init__(self, parts: Parts, dialect: Dialect = Dialect.OPENAI) -> None:
        self.status_code, self.background = 200, None  # body and headers are in the parts
        self._parts, self._keep_alive = parts, PING if dialect is Dialect.ANTHROPIC else COMMENT
        self._is_silent, self._is_between = False, True
        self._pinging: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.current_task()
        assert work is not None
        watcher = asyncio.ensure_future(_cancel_once_gone(receive, work))
        try:
            await self._send(send, body_sender(scope, send))
        except asyncio.CancelledError:
            if not watcher.done() or work.uncancel() > 0:  # cancelled from outside, because the server stops
                raise
        finally:
            watcher.cancel()

    async def _send(self, start: Send, more: Send) -> None:
        silence: asyncio.TimerHandle | None = None
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    self._is_silent = False
                    if isinstance(part, Head):
                        await start(start_message(part))
                        if part.content_type.startswith(EVENT_STREAM) and not part.is_relayed:
                            silence = self._watch_silence(more)
                    else:
                        self._is_between = part.endswith(ENDS)
                        await more({"type": "http.response.body", "body": part, "more_body": True})
                self._stop_watching(silence)
                await more({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # the client left during the answer
            return
        finally:
            self._stop_watching(silence)

    def _watch_silence(self, more: Send) -> asyncio.TimerHandle:
        """Start pings after a while. Most streams end before, and a timer is cheaper than a task."""

        def begin() -> None:
            self._pinging = asyncio.create_task(self._ping(more))

        return asyncio.get_running_loop().call_later(SILENCE_SECONDS, begin)

    def _stop_watching(self, silence: asyncio.TimerHandle | None) -> None:
        if silence is not None:
            silence.cancel()
        if self._pinging is not None:
            self._pinging.cancel()

    async def _ping(self, more: Send) -> None:
        """Send pings, but never inside an event, since a provider's parts may be split anywhere."""
        with suppress(OSError):
            while True:
                if self._is_silent and self._is_between:
                    await more({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
                self._is_silent = True
                await asyncio.sleep(SILENCE_SECONDS)


def start_message(head: Head) -> dict[str, object]:
    """The ASGI message that begins an answer."""
    headers = {**({"content-type": head.content_type} if head.content_type else {}), **head.headers}
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": head.status, "headers": raw}


async def _cancel_once_gone(receive: Receive, work: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    work.cancel()
