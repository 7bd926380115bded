"""The policy of `origin` as an ASGI layer: what is refused never reaches the application."""

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import RoundhouseError, UnsupportedMedia
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of
from runtime.http.guard.origin import FORMS, OriginPolicy
from runtime.http.guard.unknown import unknown


class OriginMiddleware:
    def __init__(self, app: ASGIApp, allowed: OriginPolicy) -> None:
        self._app, self._allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._allowed.check(scope["method"], scope["path"], scope["headers"])
            except RoundhouseError as refusal:
                if isinstance(refusal, UnsupportedMedia) and f"/v1{scope['path']}" in FORMS:
                    refusal = unknown(scope["path"])
                await error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
                return
        await self._app(scope, receive, send)
