"""ASGI layer of fronts for paths that need models, of which fronts have none.

| path                                       | a front                                                   |
|--------------------------------------------|-----------------------------------------------------------|
| adapters, merged models, adding, changing  | forwards it to a node (`runtime.http.fleet.passing`)      |
| and removing models, aliases, changes of   |                                                           |
| routers                                    |                                                           |
| files and batches                          | handles it: they are in the database, and nodes run lines |
| one request's record                       | forwards it to the node that answered, if known;          |
|                                            | otherwise answers from the ledger                         |
| other changes of models: loads, pins       | refuses it with 409 `is_front`                            |
"""

import re
from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import FinalConflict, RoundhouseError
from runtime.http.errors import error_response
from runtime.http.fleet.passing import REQUEST, is_passed_on, node_of_request, nodes_of_model, pass_on
from runtime.http.guard.access import dialect_of

_CHANGED = re.compile(r"/v1/models(/|\Z)|/api/(pull|delete|copy|create|push)\Z")


def _place_for(scope: Scope) -> str:
    """Say where a change of a model has to be sent."""
    nodes = nodes_of_model(scope)
    return f"one of the nodes that have the model ({', '.join(nodes)})" if nodes else "a node of the fleet"


class FrontMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine, since one per layer would stay in memory as long as a stream runs."""
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            node = node_of_request(scope) if path.startswith(REQUEST) else None
            if node is not None or is_passed_on(method, path):
                return _pass_on(scope, receive, send, node)
            if method not in ("GET", "HEAD") and _CHANGED.match(path):
                error = FinalConflict(
                    f"This server is a front and has no models of its own: send this to {_place_for(scope)}. "
                    "Any server moves a model to other nodes: roundhouse fleet place.",
                    code="is_front",
                )
                return error_response(error, dialect_of(path))(scope, receive, send)
        return self._app(scope, receive, send)


async def _pass_on(scope: Scope, receive: Receive, send: Send, node: str | None) -> None:
    try:
        await pass_on(scope, receive, send, node)
    except RoundhouseError as error:
        await error_response(error, dialect_of(scope["path"]))(scope, receive, send)
