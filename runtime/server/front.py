"""A front: one process with the same application, but without LitServe, devices and slots."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from registry.base.heap import freeze_heap
from registry.recipes.loading import Documents
from runtime.config import logs
from runtime.config.device import NO_DEVICE
from runtime.config.settings import Settings
from runtime.http.app import finish
from runtime.http.guard.layers import raise_file_limit, uvicorn_options
from runtime.http.routes import routes
from runtime.server.api_process import ApiProcess
from runtime.server.shutdown import log


class _Server(uvicorn.Server):
    """A server that does not raise its signal again at the end, which would prevent the cleanup."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield


def build_front(settings: Settings, documents: Documents) -> FastAPI:
    """Build the application. Only providers and routers of the recipes are used; the models belong to the nodes."""
    process = ApiProcess(settings, replace(documents, models=()), NO_DEVICE)
    app = FastAPI()
    for layer, options in process.layers():
        app.add_middleware(layer, **options)
    for path, endpoint, methods in routes():
        app.add_api_route(path, endpoint, methods=methods)
    process.app = app
    finish(app, ())
    return app


def run_front(settings: Settings, documents: Documents, background: Callable[[], object] | None) -> int:
    """Serve until SIGINT or SIGTERM. Returns exit code 0 if drained, 1 if it could not start.

    `background` runs in a thread in the meantime.
    """
    logs.configure(settings.log_level)
    raise_file_limit()
    app = build_front(settings, documents)
    if background is not None:
        threading.Thread(target=background, daemon=True).start()
    freeze_heap()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(settings.drain_seconds) + 5,
        **uvicorn_options(settings),
    )
    server = _Server(config)
    try:
        server.run([_shared_socket(settings.host, settings.port)] if settings.shared_port else None)
    except SystemExit:
        log.error("the front could not start")
        return 1
    return 0 if server.started else 1


def _shared_socket(host: str, port: int) -> socket.socket:
    """Bind a socket on a port shared by several fronts of the same user; the kernel distributes the connections."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    listener.bind(address)
    return listener
