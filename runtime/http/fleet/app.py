"""The application of the fleet's port: paths of inference, and the reports."""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.routing import Route

from runtime.config.settings import Settings
from runtime.gateway.core import Gateway
from runtime.gateway.peers.following import PATH
from runtime.http.fleet.hops import HopMiddleware
from runtime.http.fleet.reports import stream_reports
from runtime.http.guard.access import dialect_of
from runtime.http.guard.layers import body_layer
from runtime.http.middleware import ContextMiddleware
from runtime.http.routes import INFERENCE_PATHS


def fleet_application(public: FastAPI, settings: Settings, gateway: Callable[[], Gateway], node: str) -> FastAPI:
    """Beside the public application, whose handlers of inference it has. node: this server's name in the fleet."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.router.routes[:] = [
        *(route for route in public.router.routes if getattr(route, "path", None) in INFERENCE_PATHS),
        Route(PATH, stream_reports, methods=["GET"]),
    ]
    app.exception_handlers = dict(public.exception_handlers)
    layer, options = body_layer(settings)
    app.add_middleware(layer, **options)
    app.add_middleware(HopMiddleware)
    app.add_middleware(
        ContextMiddleware, gateway=gateway, dialect_of=dialect_of, start=_nothing, stop=_nothing, node=lambda: node
    )
    return app


async def _nothing() -> None:
    """The public application opens and closes the gateway."""
