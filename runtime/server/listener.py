"""A node's second port, for the other servers of its fleet, in the event loop of the API process."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from registry.errors import Unavailable
from runtime.config.settings import Settings
from runtime.http.guard.layers import connection_bounds
from runtime.http.guard.protocol import GuardedConnection

log = logging.getLogger("roundhouse.fleet")
POLL_SECONDS = 0.02


class _Server(uvicorn.Server):
    """A server that leaves signals to the public port, which stops this one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class FleetListener:
    """Listens with TLS and certificates on both sides (`fleet.tls`).

    context: None if the fleet uses a key; then the application checks signatures (`fleet.signatures`).
    """

    def __init__(self, app: ASGIApp, settings: Settings, context: ssl.SSLContext | None) -> None:
        self._settings = settings
        bounds = connection_bounds(settings, settings.max_idle)
        options: dict[str, Any] = {"http": partial(GuardedConnection, bounds), "ws": "none"}
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=int(settings.keep_alive),
            timeout_graceful_shutdown=int(settings.drain_seconds) + 5,
            **options,
        )
        config.load()
        config.ssl = context
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it listens. Raises Unavailable if it cannot."""
        listener = bind(self._settings.fleet_listen or "")
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="fleet-port")
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(POLL_SECONDS)
        log.info("listening for the fleet", extra={"address": self._settings.fleet_listen})

    async def stop(self, seconds: float) -> None:
        """Close the port, and wait up to `seconds` for running requests."""
        if self._task is None:
            return
        self._server.should_exit = True
        await asyncio.wait({self._task}, timeout=seconds)
        self._server.force_exit = True
        await asyncio.wait({self._task}, timeout=1.0)
        self._task.cancel()


def bind(listen: str) -> socket.socket:
    """Bind a socket at HOST:PORT. Raises Unavailable with the reason if that fails."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise Unavailable(f"Cannot listen on --fleet-listen {listen}: {error.strerror or error}.") from None
    return listener
