"""This node's reports as server-sent events, for the other servers of the fleet; and a look at its row."""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from registry.errors import NotFound
from runtime.gateway.peers.service import Fleet
from runtime.http.dialect import EVENT_STREAM, NO_BUFFERING, Head, Parts
from runtime.http.middleware import gateway_of
from runtime.http.sending import Answer


async def stream_reports(request: Request) -> Response:
    """`names` whenever they change, `report` once a second and at each change."""
    return Answer(_events(_fleet(request).events()))


async def look(request: Request) -> Response:
    """Read this node's row in the database, which another server has changed."""
    await _fleet(request).look()
    return Response(status_code=204)


def _fleet(request: Request) -> Fleet:
    fleet = gateway_of(request.scope).services.fleet
    if fleet is None:
        raise NotFound("This server belongs to no fleet.", code="unknown_path")
    return fleet


async def _events(events: AsyncIterator[tuple[str, bytes]]) -> Parts:
    yield Head(200, EVENT_STREAM, NO_BUFFERING)
    async for name, data in events:
        yield b"event: %s\ndata: %s\n\n" % (name.encode(), data)
