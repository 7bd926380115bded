"""Paths that need models of this server, as an ASGI layer of fronts, which have none."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import FinalConflict
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of

_OWN = re.compile(r"/v1/(adapters|files|batches|batch|webhooks|messages/batches)(/|\Z)|/v1/requests/")
_CHANGED = re.compile(r"/v1/models(/|\Z)|/api/(pull|delete|copy|create|push)\Z")


class FrontMiddleware:
    """Refuses what only a node can do: files and batches, adapters, and changes of models."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, is_read = scope["path"], scope["method"] in ("GET", "HEAD")
            if _OWN.match(path) or (not is_read and _CHANGED.match(path)):
                error = FinalConflict(
                    "This server is a front and has no models of its own: send this to a node of the fleet "
                    "(roundhouse fleet nodes).",
                    code="is_front",
                )
                await error_response(error, dialect_of(path))(scope, receive, send)
                return
        await self._app(scope, receive, send)
