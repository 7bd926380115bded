"""Conversations of routers that have their home on this node, for the other servers of the fleet."""

from starlette.requests import Request
from starlette.responses import Response

from registry.errors import BadRequest
from runtime.gateway.peers.conversations import LONGEST_NAME
from runtime.gateway.routing.dispatcher import Conversations
from runtime.http.middleware import gateway_of

MOST_SECONDS = 7 * 86_400.0
_KEY_BYTES = 16


async def find_conversation(request: Request) -> Response:
    """Answer with a conversation's target as text; 204: it is not known."""
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
