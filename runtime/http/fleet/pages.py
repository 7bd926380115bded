"""Pages of another server's console, passed on to a viewer at this one."""

from collections.abc import AsyncGenerator
from contextlib import suppress

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from registry.base.wording import quoted
from registry.errors import NodeFailed, NotFound
from runtime.gateway.backend import RelayedAnswer
from runtime.gateway.peers.service import Fleet
from runtime.http.middleware import context_of
from runtime.http.serving import beginning_of


class PassedPage(Response):
    """An answer of another server, passed on unchanged. Sending it raises NodeFailed."""

    def __init__(self, fleet: Fleet, node: str, path: str) -> None:
        """path: with the query. Raises NotFound for an unknown node, or one that does not report."""
        if not fleet.reports_now(node):
            raise NotFound(f"No node {quoted(node)} reports now: see the page Fleet.", code="server_not_found")
        super().__init__()
        self._fleet, self._node, self._path = fleet, node, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        async with self._fleet.exchange(context, "GET", self._node, self._path, None, scope["headers"]) as answer:
            head, first = await beginning_of(answer)
            await StreamingResponse(_stream(first, answer), head.status, dict(answer.headers))(scope, receive, send)


async def _stream(data: bytes, answer: RelayedAnswer) -> AsyncGenerator[bytes, None]:
    """Yield a page. A stream of events ends if its node breaks off; the browser opens it again."""
    with suppress(NodeFailed):
        while data or (data := await answer.read()):
            yield data
            data = b""
