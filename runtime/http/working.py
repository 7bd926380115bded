"""HTTP plumbing that all endpoints share: bounded bodies, JSON, and work that ends when its client leaves."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from registry.errors import BadRequest, EngineFailed, RoundhouseError, TooLarge
from runtime.gateway.prefer import NotYet
from runtime.http import errors as http_errors
from runtime.http.errors import Dialect

log = logging.getLogger("roundhouse.http")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises TooLarge over `limit` bytes, before reading on. How slow it may be: `guard.bodies`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is over this server's limit of {limit / 2**20:.0f} MiB for this endpoint.")


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises BadRequest that says where it is broken."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(error) from None
    if not isinstance(data, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    return data


def unreadable(error: Exception) -> BadRequest:
    """What is wrong with a body that msgspec could not decode."""
    if isinstance(error, RecursionError):
        return BadRequest("the JSON body is nested too deeply", code="json_too_deep")
    return BadRequest(f"The body is not valid JSON: {error}.", code="invalid_json")


def error_response(error: RoundhouseError, dialect: Dialect = Dialect.OPENAI) -> Response:
    return Response(
        http_errors.encode(error, dialect),
        http_errors.status(error, dialect),
        headers=http_errors.headers(error),
        media_type="application/json",
    )


def accepted(later: NotYet) -> Response:
    """202: the load has begun; where to look, and when to come back."""
    where, seconds = f"/v1/models/{later.model}", math.ceil(later.expected_seconds)
    body = {"object": "model.load", "model": later.model, "status_url": where, "expected_seconds": seconds}
    return JSONResponse(
        body, 202, {"Location": where, "Retry-After": str(seconds), "Preference-Applied": "respond-async"}
    )


class Working(Response):
    """A response whose work starts when it is sent and is cancelled when the client disconnects.

    `work` gets `send` and either sends a whole answer itself (a stream) and returns None, or returns a Response.
    A RoundhouseError that it raises before anything was sent becomes the error response.
    """

    def __init__(self, work: Callable[[Send], Awaitable[Response | None]], dialect: Dialect = Dialect.OPENAI) -> None:
        self._work, self._dialect = work, dialect
        super().__init__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._guarded(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
                return
            response = work.result()
            if response is not None:
                await response(scope, receive, send)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()

    async def _guarded(self, send: Send) -> Response | None:
        try:
            return await self._work(send)
        except RoundhouseError as error:
            return error_response(error, self._dialect)
        except NotYet as later:
            return accepted(later)
        except OSError:  # the client left while we were sending
            return None
        except Exception:
            log.exception("unmapped error in an endpoint")
            return error_response(
                EngineFailed("The server failed on this request.", code="internal_error"), self._dialect
            )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
