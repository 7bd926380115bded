"""The application of the fleet's port: inference, changes of names and models, and paths for other servers.

Those are this node's reports, rereading its row, files, and conversations with their home here.
"""

from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fleet.signatures import FleetKey
from fleet.tls import FleetTls
from registry.errors import BadRequest, NotFound
from runtime.config.settings import Settings
from runtime.gateway.core import Gateway
from runtime.gateway.peers.conversations import LONGEST_NAME
from runtime.gateway.peers.conversations import PATH as CONVERSATIONS
from runtime.gateway.peers.following import PATH as REPORTS
from runtime.gateway.peers.service import LOOK, Fleet
from runtime.gateway.routing.dispatcher import Conversations
from runtime.http.app import add_direct_layer
from runtime.http.dialect import EVENT_STREAM, NO_BUFFERING, Head, Parts
from runtime.http.fleet.fronts import CHANGES, MODEL_ROUTES, PASSED, REQUEST
from runtime.http.fleet.hops import HopMiddleware, SignatureMiddleware
from runtime.http.guard.access import dialect_of
from runtime.http.guard.layers import body_layer
from runtime.http.middleware import ContextMiddleware, gateway_of
from runtime.http.pages import PATH as CONSOLE
from runtime.http.routes import INFERENCE_PATHS
from runtime.http.sending import Answer


def fleet_application(
    public: FastAPI, settings: Settings, gateway: Callable[[], Gateway], node: str, identity: FleetTls | FleetKey
) -> FastAPI:
    """Build the application next to the public one, with its inference handlers. node: this server's name."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.router.routes[:] = [
        *(route for route in public.router.routes if _is_passed_on(getattr(route, "path", ""))),
        *OWN_ROUTES,
    ]
    app.exception_handlers = dict(public.exception_handlers)
    add_direct_layer(app)
    layer, options = body_layer(settings)
    app.add_middleware(layer, **options)
    app.add_middleware(HopMiddleware)
    if isinstance(identity, FleetKey):
        app.add_middleware(SignatureMiddleware, key=identity)
    app.add_middleware(
        ContextMiddleware, gateway=gateway, dialect_of=dialect_of, start=_nothing, stop=_nothing, node=lambda: node
    )
    return app


def _is_passed_on(path: str) -> bool:
    """Whether fronts forward requests for a route with this path template to nodes."""
    is_change = PASSED.match(path) is not None or CHANGES.match(path) is not None
    return path in INFERENCE_PATHS or is_change or path in MODEL_ROUTES or path == CONSOLE or path.startswith(REQUEST)


async def _nothing() -> None:
    """Do nothing at startup and shutdown: the public application opens and closes the gateway."""


# --- paths for other servers -----------------------------------------------------------------------------------------
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


OWN_ROUTES = (
    Route(REPORTS, stream_reports, methods=["GET"]),
    Route(LOOK, look, methods=["POST"]),
    Route("/fleet/v1/adapters/{digest}", send_copy, methods=["GET"]),
    Route("/fleet/v1/routers/{digest}", send_router, methods=["GET"]),
    Route(f"{CONVERSATIONS}/{{key}}", find_conversation, methods=["GET"]),
    Route(f"{CONVERSATIONS}/{{key}}", remember_conversation, methods=["PUT"]),
)
