"""The process that answers HTTP: opens the gateway before the first request and closes it after the last response."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI

from batches.callbacks.deliverer import CallbackDeliverer
from batches.work.worker import BatchWorker
from registry.base.heap import CollectionLog, freeze_heap
from registry.errors import Unavailable
from registry.recipes.loading import Documents
from registry.storage.files import unusable
from runtime.config import logs
from runtime.config.device import Device
from runtime.config.secret_variables import return_secrets
from runtime.config.settings import Settings
from runtime.gateway.core import Gateway
from runtime.gateway.opening import open_gateway
from runtime.http.batches.lines import batch_worker, callback_deliverer, resolve_names
from runtime.http.guard.access import dialect_of
from runtime.http.guard.layers import Layer, layers
from runtime.http.middleware import ContextMiddleware
from runtime.server.shutdown import RemainingWork, Shutdown, log

if TYPE_CHECKING:  # a server without a fleet loads nothing of it
    from runtime.server.listener import FleetListener


class ApiProcess:
    """The gateway's lifecycle in the API process, from the first request to the last response.

    request_slot: makes the main process start one more slot; None if it cannot.
    """

    def __init__(
        self,
        settings: Settings,
        documents: Documents,
        device: Device,
        request_slot: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._opened = open_gateway(settings, documents, device, request_slot)
        self._gateways: list[Gateway] = []
        self._reloads: list[asyncio.Task[None]] = []
        self._batches: BatchWorker | None = None
        self._callbacks: CallbackDeliverer | None = None
        self._listener: FleetListener | None = None
        self.app: FastAPI | None = None
        """The public application, once created. The fleet's port uses its handlers."""
        self._shutdown = Shutdown(self._remaining, settings.drain_seconds, self._closing)

    def gateway(self) -> Gateway:
        return self._gateways[0]

    def _closing(self) -> None:
        """End or announce what would outlast the closing of the port."""
        services, loop = self.gateway().services, asyncio.get_running_loop()
        # woken, because a signal handler calls this while the loop may sleep
        loop.call_soon_threadsafe(loop.call_later, self._settings.drain_seconds, self._cut_off)
        services.console.live.close()
        if services.fleet is not None:
            services.fleet.leave()
        if self._batches is not None:
            self._batches.stop_claiming()

    def _cut_off(self) -> None:
        """End the requests whose time is over, so that they get an error before uvicorn closes their connections."""
        self._shutdown.drained()
        if self._batches is not None:
            self._batches.stop_lines()  # first, so that none counts as a failed attempt
        self.gateway().cut_off()

    def _remaining(self) -> RemainingWork:
        return RemainingWork(*self.gateway().services.overview.remaining_work())

    def _on_hangup(self) -> None:
        self._reloads.append(asyncio.get_running_loop().create_task(self._reload()))

    async def _reload(self) -> None:
        try:
            await self.gateway().services.reloader.reload()
        except Exception:  # the boundary: nothing else awaits this task
            log.exception("reloading the recipes failed")

    async def start(self) -> None:
        logs.configure(self._settings.log_level)  # LitServe has configured its own logging since the fork
        return_secrets()
        try:
            self._gateways.append(await self._opened.__aenter__())
        except OSError as error:
            raise Unavailable(unusable(error)) from error
        if not self._settings.front:
            self._batches = batch_worker(self.gateway())
            self._batches.start()
            self._callbacks = callback_deliverer(self.gateway(), self._batches)
            self._callbacks.start()
        else:  # nodes run the lines of its batches
            resolve_names(self.gateway())
        if self.gateway().services.fleet is not None:
            await self._join()
        gc.callbacks.append(CollectionLog(asyncio.get_running_loop(), log))
        freeze_heap()
        self._shutdown.listen()
        if threading.current_thread() is threading.main_thread():  # only the main thread receives signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # an early one has waited

    async def _join(self) -> None:
        """Open the port for the fleet, then join it."""
        from runtime.http.fleet.app import fleet_application
        from runtime.server.listener import FleetListener

        fleet = self.gateway().services.fleet
        assert fleet is not None, "the server belongs to a fleet"
        assert self.app is not None, "the application was created before the start"
        if not self._settings.front:
            app = fleet_application(self.app, self._settings, self.gateway, fleet.own.name, fleet.identity)
            self._listener = FleetListener(app, self._settings, fleet.identity.server)
            await self._listener.start()
        await fleet.start()

    def layers(self) -> list[Layer]:
        """Return the middleware of the public port, innermost first."""
        context = {"gateway": self.gateway, "dialect_of": dialect_of, "start": self.start, "stop": self.stop}
        if self._settings.fleet is None:
            return [*layers(self._settings), (ContextMiddleware, context)]
        from runtime.http.fleet.fronts import FrontMiddleware
        from runtime.http.fleet.hops import HopHeaderFilter

        front: list[Layer] = [(FrontMiddleware, {})] if self._settings.front else []
        outer: list[Layer] = [(HopHeaderFilter, {}), (ContextMiddleware, {**context, "node": self._node})]
        return [*front, *layers(self._settings), *outer]

    def _node(self) -> str:
        fleet = self.gateway().services.fleet
        return "" if fleet is None else fleet.own.name

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop(self._shutdown.seconds_left())
        if self._batches is not None:
            await self._batches.drain(self._shutdown.seconds_left())
            if self._callbacks is not None:
                await self._callbacks.close()
            await self._batches.close()
        self._shutdown.drained()
        await self._opened.__aexit__(None, None, None)
        self._shutdown.ending()
