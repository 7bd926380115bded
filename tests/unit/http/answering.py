"""The gateway's complete answer to a request, without HTTP."""

from typing import NamedTuple

from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http.dialect import JSON, Endpoint, Head
from runtime.http.serving import serve


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def answer(gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes) -> Answered:
    """Return the answer, which may be an error."""
    head, parts = Head(500, JSON), []
    async for part in serve(gateway, context, endpoint, body):
        if isinstance(part, Head):
            head = part
        else:
            parts.append(part)
    return Answered(head.status, {"content-type": head.content_type, **head.headers}, b"".join(parts))
