"""Parts of an answer as an HTTP response, and work that ends when its client leaves."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from registry.errors import RoundhouseError
from runtime.gateway.core import Gateway
from runtime.http.bodies import read_body
from runtime.http.dialect import Endpoint, Head, Parts
from runtime.http.errors import error_response
from runtime.http.middleware import context_of, gateway_of
from runtime.http.serving import serve
from tenants.caller import Caller

Handler = Callable[[Request], Awaitable[Response]]
Route = tuple[str, Callable[..., Awaitable[Response]], list[str]]
"""Path, handler, methods."""


Around = Callable[[str, Gateway, Caller, bytes, Parts], Parts]
"""Puts something around the answer to a caller's body, by the path. Raises RoundhouseError for what is not allowed."""


def handler(endpoint: Endpoint, around: Around | None = None) -> Handler:
    """What FastAPI calls for a path of inference whose body is JSON."""

    async def handle(request: Request) -> Response:
        gateway, context = gateway_of(request.scope), context_of(request.scope)
        try:
            body = await read_body(request, gateway.settings.max_json)
            parts = serve(gateway, context, endpoint, body, request.query_params)
            return Answer(parts if around is None else around(endpoint.path, gateway, context.caller, body, parts))
        except RoundhouseError as error:
            with gateway.record(context, endpoint.path) as recorder:
                recorder.failed(error)
            return error_response(error, endpoint.dialect)
        except ClientDisconnect:
            with gateway.record(context, endpoint.path) as recorder:
                recorder.left()
            raise

    return handle


class Answer(Response):
    """Sends parts as they come. The work behind them starts with it and is cancelled when the client disconnects."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error

    async def _send(self, send: Send) -> None:
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    if isinstance(part, Head):
                        await send(_start(part))
                    else:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # the client left while we were sending
            return


def _start(head: Head) -> dict[str, object]:
    headers = {"content-type": head.content_type, **head.headers}
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": head.status, "headers": raw}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
