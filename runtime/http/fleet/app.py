"""The application of the fleet's port: inference, changes of names and models, reports, and files."""

from collections.abc import Callable

from fastapi import FastAPI

from fleet.signatures import FleetKey
from fleet.tls import FleetTls
from runtime.config.settings import Settings
from runtime.gateway.core import Gateway
from runtime.http.app import add_direct_layer
from runtime.http.fleet import own_paths
from runtime.http.fleet.fronts import CHANGES, MODEL_ROUTES, PASSED, REQUEST
from runtime.http.fleet.hops import HopMiddleware, SignatureMiddleware
from runtime.http.guard.access import dialect_of
from runtime.http.guard.layers import body_layer
from runtime.http.middleware import ContextMiddleware
from runtime.http.pages import PATH as CONSOLE
from runtime.http.routes import INFERENCE_PATHS


def fleet_application(
    public: FastAPI, settings: Settings, gateway: Callable[[], Gateway], node: str, identity: FleetTls | FleetKey
) -> FastAPI:
    """Build the application next to the public one, with its inference handlers. node: this server's name."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.router.routes[:] = [
        *(route for route in public.router.routes if _is_passed_on(getattr(route, "path", ""))),
        *own_paths.ROUTES,
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
