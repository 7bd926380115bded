"""Paths for other servers of the fleet: this node's reports, rereading its row, files, and conversations."""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from registry.errors import BadRequest, NotFound
from runtime.gateway.peers.conversations import LONGEST_NAME
from runtime.gateway.peers.conversations import PATH as CONVERSATIONS
from runtime.gateway.peers.following import PATH as REPORTS
from runtime.gateway.peers.service import LOOK, Fleet
from runtime.gateway.routing.dispatcher import Conversations
from runtime.http.dialect import EVENT_STREAM, NO_BUFFERING, Head, Parts
from runtime.http.middleware import gateway_of
from runtime.http.sending import Answer

MOST_SECONDS = 7 * 86_400.0
_KEY_BYTES = 16


async def stream_reports(request: Request) -> Response:
    """Stream `names` after each change, and `report` once a second and after each change."""
    return Answer(_events(_fleet(request).events()))


async def _events(events: AsyncIterator[tuple[str, bytes]]) -> Parts:
    yield Head(200, EVENT_STREAM, NO_BUFFERING)
    async for name, data in events:
        yield b"event: %s\ndata: %s\n\n" % (name.encode(), data)


async def look(request: Request) -> Response:
    """Reread this node's row in the database, which another server has changed."""
    await _fleet(request).look()
    return Response(status_code=204)


def _fleet(request: Request) -> Fleet:
    fleet = gateway_of(request.scope).services.fleet
    if fleet is None:
        raise NotFound("This server belongs to no fleet.", code="unknown_path")
    return fleet


async def send_copy(request: Request) -> Response:
    """Send an adapter's files by digest, as one stream (`adapters.content.copies`). Raises NotFound."""
    copy = await gateway_of(request.scope).services.adapters.open_copy(request.path_params["digest"])
    return StreamingResponse(
        copy.parts(), media_type="application/octet-stream", headers={"content-length": str(copy.size)}
    )


async def send_router(request: Request) -> Response:
    """Send a router's packed files by digest. Raises NotFound."""
    data = await gateway_of(request.scope).services.routers.packed(request.path_params["digest"])
    return Response(data, media_type="application/octet-stream")


async def find_conversation(request: Request) -> Response:
    """Answer with a conversation's target as text, or 204 if it is unknown."""
    target = _conversations(request).target_of(_key(request))
    return Response(status_code=204) if target is None else Response(target, media_type="text/plain")


async def remember_conversation(request: Request) -> Response:
    """Remember a target that another server chose."""
    query = request.query_params
    try:
        seconds = min(MOST_SECONDS, float(query.get("seconds", "")))
    except ValueError:
        raise BadRequest("Send `seconds` as a number.", param="seconds") from None
    _conversations(request).remember(_key(request), query.get("target", "")[:LONGEST_NAME], seconds)
    return Response(status_code=204)


def _conversations(request: Request) -> Conversations:
    return gateway_of(request.scope).dispatcher.conversations


def _key(request: Request) -> bytes:
    try:
        key = bytes.fromhex(request.path_params["key"])
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise BadRequest("A conversation's key has 32 hexadecimal digits.", param="key")
    return key


ROUTES = (
    Route(REPORTS, stream_reports, methods=["GET"]),
    Route(LOOK, look, methods=["POST"]),
    Route("/fleet/v1/adapters/{digest}", send_copy, methods=["GET"]),
    Route("/fleet/v1/routers/{digest}", send_router, methods=["GET"]),
    Route(f"{CONVERSATIONS}/{{key}}", find_conversation, methods=["GET"]),
    Route(f"{CONVERSATIONS}/{{key}}", remember_conversation, methods=["PUT"]),
)
