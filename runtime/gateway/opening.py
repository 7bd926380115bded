"""The composition of all rooms: from settings to a running gateway."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.service import AdapterService
from batches.callbacks.addresses import CallbackAddresses
from batches.intake.stored_files import FileLimits
from batches.service import BatchService
from batches.store import BatchStore
from console.state import Console
from launch.checks.checker import FileChecker
from launch.recipe_store import RecipeFiles, RecipeStore, arrange
from models.sources import resolve as sources
from registry.recipes.definition import Recipe, Task
from registry.recipes.loading import Documents
from registry.state.database import State
from registry.storage.reserve import DiskReserve
from runtime.config.device import Device, memories_of
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.combine import Combiner
from runtime.gateway.core import Gateway
from runtime.gateway.files import ModelFiles
from runtime.gateway.launch.additions import Additions
from runtime.gateway.launch.editor import Editor
from runtime.gateway.launch.merged import MERGED, MergedModels, merged_sizes, tidy_merged
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.local.adapters import LocalAdapterRegistry
from runtime.gateway.local.backend import LocalBackend
from runtime.gateway.local.observer import ResidencyRecord
from runtime.gateway.local.rooms import LineRooms
from runtime.gateway.metrics import Metrics
from runtime.gateway.models import Models
from runtime.gateway.names import Names
from runtime.gateway.providers.backend import ProviderBackend
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.store import ProviderStore
from runtime.gateway.providers.views import Providers
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.services import Services
from runtime.gateway.sinks.operators import ConsoleSink, LimitMetrics, RequestLog, RequestMetrics, TeamMetrics
from runtime.gateway.sinks.tenants import LedgerSink, LimitSink
from runtime.gateway.tracing.setup import start as start_tracing
from runtime.gateway.uploads import Uploads
from runtime.gateway.views.live import LiveSampler
from runtime.gateway.views.overview import Overview
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.policy import NO_LIMIT, replica_id
from runtime.residency.table import Table
from runtime.residency.watcher import engines_at_start, keep_warm
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots.pool import SlotGrowth, SlotPool
from runtime.slots.unix_link import unix_links
from tenants.costs.prices import MILLION
from tenants.ledger.ledger import Ledger
from tenants.ledger.view import UsageReport
from tenants.limits.limiter import Limiter
from tenants.limits.loader import LimitLoader
from tenants.limits.stored import QueueLimiter, StorageLimiter
from tenants.responses.store import ResponseStore
from tenants.watch import Administration, KeyWatch

if TYPE_CHECKING:  # only servers with keys load the database modules, and only fleet members those of the fleet
    from fleet.shared_limits import SharedLimits
    from registry.storage.database import Database
    from runtime.gateway.peers.opening import FleetParts, FleetTables
    from tenants.sign_in.flow import SignIn

log = logging.getLogger("roundhouse.gateway")


@asynccontextmanager
async def open_gateway(
    settings: Settings, documents: Documents, device: Device, request_slot: Callable[[], None] | None = None
) -> AsyncIterator[Gateway]:
    """Open the state, connect the slots, begin preloads; close them at the end.

    The adapters of recipes are registered in the background; `phase` shows when they are ready.

    request_slot: starts one more slot. None if the number of slots is fixed.
    """
    rooms = _Rooms(settings, documents, device, request_slot)
    await rooms.open()
    gateway = rooms.gateway()
    await rooms.start()
    background = [
        asyncio.create_task(rooms.residency.watcher.watch(settings.heartbeat, settings.hung_after), name="watch"),
        asyncio.create_task(rooms.begin(gateway), name="begin"),
        asyncio.create_task(rooms.batches.run(), name="files"),
    ]
    if settings.watch:
        background.append(asyncio.create_task(rooms.reloader.watch(), name="watch-recipes"))
    try:
        yield gateway
    finally:
        gateway.phase = "stopping"
        for task in background:
            task.cancel()
        await gateway.on_demand.close()
        await rooms.close()


class _Rooms:
    """The parts of a gateway, built in the order of their dependencies."""

    def __init__(
        self, settings: Settings, documents: Documents, device: Device, request_slot: Callable[[], None] | None = None
    ) -> None:
        self.settings, self.documents, self.device = settings, documents, device
        self.request_slot = request_slot
        self.ledger = Ledger(settings.data_dir, settings.currency, in_fleet=settings.fleet is not None)
        self.metrics = Metrics()
        count = LimitMetrics(self.metrics).count
        merged = merged_sizes(settings.data_dir / MERGED)
        self.shared_limits = None if settings.fleet is None else _shared_limits()
        self.limiter = Limiter(count, wall=lambda: self.ledger.clock(), source=self.shared_limits)
        self.storage_limiter = StorageLimiter(count, merged=merged)
        self.queue_limiter = QueueLimiter(count)
        self.limits = LimitLoader(self.limiter, self.ledger, self.storage_limiter, self.queue_limiter)
        sign_in = None if settings.oidc is None else _sign_in(settings.oidc)
        self.console = Console(settings.port, settings.bounds.viewers, sign_in)
        self.responses = ResponseStore(settings.data_dir, settings.store_responses, settings.bounds)
        self.keys = KeyWatch(settings.keys, self.ledger.enable, self._teams_changed)
        limits = FileLimits(
            disk=settings.files_disk, largest=settings.max_file, line_bytes=settings.max_json,
            values=settings.bounds.json_values,
        )  # fmt: skip
        store = BatchStore(self.ledger, settings.data_dir, self.keys.tables, lambda: self.keys.derive("webhooks"))
        addresses = CallbackAddresses(settings.callback_networks)
        self.reserve = DiskReserve(settings.data_dir, settings.disk_reserve)
        self.batches = BatchService(
            store, settings.data_dir, limits, addresses, self.queue_limiter,
            is_unwritten=lambda: self.ledger.journalled > 0 or self.ledger.is_failing, reserve=self.reserve,
        )  # fmt: skip
        self.fleet: FleetParts | None = None
        self.tracing = start_tracing()
        self.bounds = WaitingBound(settings.max_waiting)

    async def open(self) -> None:
        """Read the state and the recipes. Raises their errors."""
        settings, documents, device, metrics = self.settings, self.documents, self.device, self.metrics
        for note in documents.notes:
            log.warning(note)
        tables = await self._fleet_tables()
        await self.keys.start()
        if settings.store_responses or settings.oidc is not None:
            await self.keys.tables()
        shared = None if tables is None else tables.names
        self.state = state = await asyncio.to_thread(State, settings.data_dir, url=settings.database, shared=shared)
        store = await asyncio.to_thread(self._recipe_store)
        added = await asyncio.to_thread(store.read)
        arranged = arrange(documents.models, added.recipes)
        self.names = names = Names(arranged.recipes, state)
        for fault in (*added.faults, *arranged.notes):
            log.error("a recipe is left out", extra={"cause": fault})
        for note in names.catalog.notes if shared is None else ():  # in a fleet another node may have the models
            log.warning(note)
        self.service = AdapterService(
            settings.data_dir, state, leased=self._is_leased, bounds=settings.bounds, reserve=self.reserve
        )
        self.checker = FileChecker()
        self.files = ModelFiles(state, device, settings.data_dir / "converted", self.reserve, self.checker)
        await asyncio.to_thread(self.files.tidy)
        await asyncio.to_thread(tidy_merged, settings.data_dir / MERGED)
        self.entries = [
            await asyncio.to_thread(self.files.entry, recipe, self._queue_of) for recipe in arranged.recipes
        ]
        self.pool = SlotPool(
            unix_links(str(settings.run_dir)),
            settings.slots,
            lambda link: self.residency.watcher.died(link),
            engines_at_start(settings, documents.models),
            lambda: self.residency.decide(),
            None if self.request_slot is None else SlotGrowth(settings.most_slots, self.request_slot),
        )
        self.figures = ResidencyRecord(metrics, state, device, self.console.decisions)
        on_cpu = device.kind == "cpu"
        host_budget = NO_LIMIT if on_cpu else device.host_budget
        rows = [replica for entry in self.entries for replica in entry.replicas]
        table = Table(
            rows, self.pool, device.budgets, self.figures, memories_of(device), host_budget,
            counts_processes=on_cpu,
        )  # fmt: skip
        self.residency = ResidencyManager(
            table, self._fetch, self.files.revise, settings.patience, settings.working_margin
        )
        self.adapters = Adapters(names, self.residency, self.service, self.storage_limiter)
        self.models = Models(names, self.residency, self.pool, state, self.files)
        self.model_set = ModelSet(
            documents.models, store, added, names, self.residency, self._queue_of, self.files, state, metrics,
            self.adapters.register_from_recipe,
        )  # fmt: skip
        self.providers = ProviderIndex(names, documents.providers, metrics.provider_attempt)
        self.routers = RouterStore(settings.data_dir / "routers", state, names, settings.bounds)
        self.provider_store = ProviderStore(settings.data_dir / "providers", names, self.providers, documents.providers)
        await asyncio.to_thread(self.provider_store.open)
        if tables is not None:
            from runtime.gateway.peers.opening import OwnParts, open_fleet, share

            own = OwnParts(
                names, self.models, self.residency, device, state, self.service, self.adapters, self.routers,
                self.model_set,
            )  # fmt: skip
            self.fleet = open_fleet(settings, tables, own)
            if self.shared_limits is not None:
                database = tables.members.database
                await share(self.fleet.fleet, database, self.shared_limits, self.console, self.keys, self.ledger)
        self.reloader = RecipeReloader(
            self.model_set, settings.recipes, self.routers.open, self.provider_store.serve,
            with_models=not settings.front,
        )  # fmt: skip

    def gateway(self) -> Gateway:
        settings, names, residency = self.settings, self.names, self.residency
        overview = Overview(
            self.device,
            names,
            self.models,
            residency,
            self.pool,
            self.bounds,
            self.metrics,
            lambda: self.model_set.faults,
        )
        usage = UsageReport(self.ledger, settings.currency, settings.provider_prices)
        trusted = settings.trust_clients
        line_rooms = LineRooms(
            names, residency, provider_of=self.providers.provider_of, observe=self.metrics.count_line,
            find_remote=None if self.fleet is None else self.fleet.backend.find, was_removed=self.model_set.was_removed,
        )  # fmt: skip
        services = Services(
            settings=settings,
            models=self.models,
            adapters=self.adapters,
            combiner=Combiner(names, self.service, self.adapters),
            merged=MergedModels(settings.data_dir / MERGED, self.model_set, residency),
            additions=Additions(self.model_set, names, residency, self.device, trusted, self.checker),
            editor=Editor(
                self.model_set,
                names,
                residency,
                self.state,
                self.files,
                self.device,
                trusted,
                settings.bounds.recipe_versions,
            ),
            reloader=self.reloader,
            overview=overview,
            keyring=self.keys.keyring,
            administration=Administration(self.keys),
            usage=usage,
            responses=self.responses,
            batches=self.batches,
            line_rooms=line_rooms,
            batch_forecasts=self.metrics.batch_forecast,
            routers=self.routers,
            providers=self.providers,
            provider_models=Providers(self.providers, self.metrics),
            provider_store=self.provider_store,
            uploads=Uploads(settings.max_uploads, settings.max_adapter, settings.bounds, self.reserve),
            reserve=self.reserve,
            console=self.console,
            live=LiveSampler(names, overview, self.console, usage.currency),
            fleet=None if self.fleet is None else self.fleet.fleet,
        )
        local = LocalBackend(names, residency, self.service.stored, self.metrics)
        peers = [] if self.fleet is None else [self.fleet.backend]
        machine_price = round(settings.machine_price * MILLION)
        gateway = Gateway(
            services,
            names,
            [ProviderBackend(self.providers), *peers, local],
            ledger=LedgerSink(
                self.ledger,
                machine_price,
                cold=settings.cold_starts == "caller",
                is_lenient=lambda: self.keys.is_unclaimed and self.limiter.is_empty,
            ),
            limits=LimitSink(self.limiter, self.ledger, settings.max_audio_seconds),
            sinks=[
                RequestMetrics(self.metrics),
                TeamMetrics(self.metrics),
                RequestLog(),
                ConsoleSink(self.console),
                line_rooms,
                *(() if self.fleet is None else (self.fleet.timer,)),
            ],
            transcripts=self.console.texts,
            tracing=self.tracing,
        )
        if self.fleet is not None:
            gateway.dispatcher.others = self.fleet.conversations
        return gateway

    async def start(self) -> None:
        self.metrics.budget.set(self.device.budget)
        self.metrics.host_budget.set(self.device.host_budget)
        self.metrics.storage_free.set_function(lambda: self.reserve.measure()[0])
        self.metrics.storage_reserve.set_function(lambda: self.reserve.measure()[1])
        self.metrics.ledger_journalled.set_function(lambda: self.ledger.journalled)
        await self.batches.open()
        await self.service.start(warm=any(entry.recipe.task is Task.CHAT for entry in self.entries))
        if self.fleet is not None:
            self.fleet.fleet.export_certificate(self.metrics.certificate)
            self.fleet.shared.start()
        self.pool.start()

    async def begin(self, gateway: Gateway) -> None:
        """Preload models, register adapters and warm spare slots, once the port is open."""
        tables = asyncio.create_task(self.keys.make_tables(), name="tables")
        for entry in self.entries:
            self.model_set.preload(entry)
        for entry in self.entries:
            if entry.path is not None or entry.broken is not None:
                await self.adapters.register_from_recipe(entry.recipe)  # otherwise once its files have been fetched
        self.names.refresh()
        await self.reloader.begin()
        await tables
        if gateway.phase == "starting":
            gateway.phase = "ready"
        if self.settings.prewarm:
            await keep_warm(self.pool, self.residency.table, self.device)

    def _recipe_store(self) -> RecipeStore:
        """Open the recipes added at run time. A front has none."""
        files = RecipeFiles(self.settings.data_dir / "recipes")
        files.tidy()
        if self.state.recipes is None or self.settings.front:
            return files
        if unused := sorted({recipe.id for recipe in files.read().recipes}):
            log.warning(
                "models that were added before this server joined the fleet are out of use: roundhouse fleet import",
                extra={"models": unused},
            )
        from launch.shared_recipes import SharedRecipeStore

        return SharedRecipeStore(self.state.recipes)

    async def _fleet_tables(self) -> "FleetTables | None":
        """Return the tables that the servers of a fleet share. None without a fleet."""
        if self.settings.fleet is None:
            return None
        from runtime.gateway.peers.opening import tables_of

        tables = await asyncio.to_thread(tables_of, self.settings)
        self.ledger.clock = tables.members.now  # also for the limits, which are read next
        await self.keys.tables()  # fails here if this server's pepper differs from that of the others
        return tables

    async def close(self) -> None:
        if self.shared_limits is not None:
            await self.shared_limits.close()
        if self.fleet is not None:
            await self.fleet.shared.close()
            await self.fleet.fleet.close()
        await self.batches.close()
        await self.responses.close()
        await self.providers.close()
        await self.residency.close()
        if self.tracing is not None:
            await self.tracing.close()
        await self.pool.close()
        await self.service.close()
        await self.ledger.close()
        await self.keys.close()
        await asyncio.to_thread(self.figures.close)
        await asyncio.to_thread(self.state.close)
        shutil.rmtree(self.settings.run_dir, ignore_errors=True)

    # --- calls from below -------------------------------------------------------------------------------------------
    def _queue_of(self, recipe: Recipe, first: ModelQueue | None = None, number: int = 1) -> ModelQueue:
        id_ = replica_id(recipe.id, number)

        def entry() -> ModelEntry:
            return self.residency.table.entries.get(id_) or self.residency.get(recipe.id)

        return ModelQueue(
            recipe,
            self.bounds,
            request_load=lambda: self.residency.request_load(entry()),
            released=lambda: self.residency.released_by(id_, recipe.id),
            registry=LocalAdapterRegistry(self.names, self.service, self.metrics, self.console, recipe.id),
            first=first,
            number=number,
        )

    async def _teams_changed(self, database: "Database") -> None:
        from tenants.keys.table import teams_storing_texts

        self.console.texts.set_teams(await asyncio.to_thread(teams_storing_texts, database))
        await self.limits.read(database)
        await self.responses.read(database, alone=self.ledger.is_alone)
        self.batches.wake()

    async def _fetch(self, entry: ModelEntry, on_progress: sources.Fetched) -> None:
        await self.files.fetch(entry, on_progress)
        await self.adapters.register_from_recipe(entry.recipe)
        self.names.refresh()

    def _is_leased(self, digest: str) -> bool:
        return any(entry.queue.holds(digest) for entry in self.residency.table.entries.values())


def _shared_limits() -> "SharedLimits":
    from fleet.shared_limits import SharedLimits

    return SharedLimits()


def _sign_in(file: Path) -> "SignIn":
    """Import and build the OIDC client, which most servers never need. Raises Unfit."""
    from tenants.sign_in.flow import SignIn
    from tenants.sign_in.settings import read_oidc

    return SignIn(read_oidc(file))
