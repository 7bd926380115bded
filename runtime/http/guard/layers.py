"""The guard's ASGI layers and uvicorn's options, built from the settings."""

import re
import resource
import sys
from functools import partial
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from runtime.config.settings import Settings
from runtime.http.guard.bodies import BodyMiddleware, BodyPace
from runtime.http.guard.keys import KeyMiddleware
from runtime.http.guard.memory import BodyMemory
from runtime.http.guard.origin import OriginMiddleware, OriginPolicy
from runtime.http.guard.protocol import ConnectionBounds, GuardedConnection, IdleConnections
from runtime.http.routing.endpoints import most_fitted

FILES = 65_536
"""File descriptors to request. Each connection needs one, and the usual limit is 1,024."""
FITTED = re.compile(r"/v1/routers/[^/]+/fitted/[^/]+\Z")
SIGN_IN, SIGN_IN_BYTES = "/console/sign-in", 4 * 2**10
"""The console's sign-in form, which needs no key."""
Layer = tuple[Any, dict[str, Any]]


def layers(settings: Settings) -> list[Layer]:
    """The layers, innermost first. CORS headers are added only to allowed origins."""
    stack: list[Layer] = [body_layer(settings), (KeyMiddleware, {})]
    if settings.cors_origins:
        every: dict[str, Any] = {name: ["*"] for name in ("allow_methods", "allow_headers", "expose_headers")}
        every["allow_private_network"] = True  # Chrome may ask for it when a public page calls a private address
        stack.append((CORSMiddleware, {"allow_origins": settings.cors_origins, **every}))
    allowed = OriginPolicy.of(settings.host, settings.allowed_hosts, settings.cors_origins)
    return [*stack, (OriginMiddleware, {"allowed": allowed})]


def body_layer(settings: Settings) -> Layer:
    """The layer with the bounds on bodies, for one port."""
    pace = BodyPace(settings.body_seconds, settings.min_rate)
    most = partial(_most, settings.max_json, max(settings.max_json, most_fitted(settings.bounds)))
    memory = BodyMemory(settings.max_bodies, settings.max_json)
    return BodyMiddleware, {"pace": pace, "most": most, "memory": memory, "values": settings.bounds.json_values}


def _most(usual: int, fitted: int, path: str) -> int:
    """Most bytes of a body by path: more for fitted models, fewer for keys."""
    if path == SIGN_IN:
        return SIGN_IN_BYTES
    return fitted if FITTED.match(path) else usual


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """Options: our connection class, no WebSockets, and the idle timeout."""
    bounds = connection_bounds(settings, settings.max_idle_per_address)
    return {"http": partial(GuardedConnection, bounds), "ws": "none", "timeout_keep_alive": settings.keep_alive}


def connection_bounds(settings: Settings, idle_per_address: int) -> ConnectionBounds:
    """The bounds on one port's connections.

    If the system allows few descriptors (call `raise_file_limit` first), idle connections get at most half of them.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, room = (sys.maxsize, FILES) if files == resource.RLIM_INFINITY else (files, files // 2)
    idle = IdleConnections(min(settings.max_idle, room), min(idle_per_address, room))
    return ConnectionBounds(
        settings.max_headers, settings.header_seconds, settings.unread_seconds, settings.bounds.pipelined, idle, files
    )


def raise_file_limit() -> None:
    """Raise the limit of file descriptors as far as allowed, up to FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
