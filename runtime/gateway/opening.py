"""From settings to a running gateway, and back: the one place that knows how all rooms are put together."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from adapters.service import AdapterService
from console.state import Console
from launch.recipe_store import RecipeStore, arrange
from models.sources import resolve as sources
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe
from registry.recipes.loading import Documents
from registry.state.database import State
from runtime.config.device import Device, memory_of
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.combine import MERGED, Combiner
from runtime.gateway.combine import tidy as tidy_merged
from runtime.gateway.core import Gateway
from runtime.gateway.files import ModelFiles
from runtime.gateway.launch.additions import Additions
from runtime.gateway.launch.editor import Editor
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.local.backend import LocalBackend
from runtime.gateway.metrics import Metrics
from runtime.gateway.models import Models
from runtime.gateway.names import Names
from runtime.gateway.providers.backend import ProviderBackend
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.views import Providers
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.sinks.ledger import LedgerSink
from runtime.gateway.sinks.limits import LimitSink
from runtime.gateway.sinks.log import RequestLog
from runtime.gateway.sinks.metrics import RequestMetrics
from runtime.gateway.sinks.residency import ResidencyRecord
from runtime.gateway.sinks.teams import LimitMetrics, TeamMetrics
from runtime.gateway.tracing.setup import start as start_tracing
from runtime.gateway.views.adapter_facts import AdapterFacts
from runtime.gateway.views.overview import Overview
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.policy import NO_LIMIT
from runtime.residency.table import Table
from runtime.residency.watcher import engines_at_start, keep_warm
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots.pool import SlotPool
from runtime.slots.unix_link import unix_links
from tenants.administration import Administration
from tenants.costs.prices import MILLION
from tenants.ledger.ledger import Ledger
from tenants.ledger.view import UsageReport
from tenants.limits.limiter import Limiter
from tenants.limits.loader import LimitLoader
from tenants.watch import KeyWatch

if TYPE_CHECKING:  # a server without keys loads no database
    from registry.storage.database import Database

log = logging.getLogger("roundhouse.gateway")


@asynccontextmanager
async def open_gateway(settings: Settings, documents: Documents, device: Device) -> AsyncIterator[Gateway]:
    """Opens the state, connects the slots, begins preloads. At its end that is closed; the slots are LitServe's.

    The adapters of recipes are registered in the background: `phase` tells when that is done.
    """
    recipes = documents.models
    ledger, metrics = Ledger(settings.data_dir, settings.currency), Metrics()
    limiter = Limiter(LimitMetrics(metrics).count)
    console, limits = Console(settings.port, settings.bounds.viewers), LimitLoader(limiter, ledger)

    async def changed(database: "Database") -> None:
        from tenants.keys.table import teams_storing_texts

        console.texts.set_teams(await asyncio.to_thread(teams_storing_texts, database))
        await limits.read(database)

    keys = KeyWatch(settings.keys, ledger.enable, changed)
    await keys.start()
    state = await asyncio.to_thread(State, settings.data_dir, url=settings.database)
    shelf = RecipeStore(settings.data_dir / "recipes")
    await asyncio.to_thread(shelf.tidy)
    shelf_recipes = await asyncio.to_thread(shelf.read)
    arranged = arrange(recipes, shelf_recipes.recipes)
    names, bounds = Names(arranged.recipes, state), WaitingBound(settings.max_waiting)
    for fault in (*shelf_recipes.faults, *arranged.notes):
        log.error("a recipe is left out", extra={"cause": fault})
    for note in names.catalog.notes:
        log.warning(note)
    service = AdapterService(
        settings.data_dir,
        state,
        leased=lambda digest: any(entry.queue.holds(digest) for entry in residency.entries.values()),
        bounds=settings.bounds,
    )

    tracing = start_tracing()

    def queue_of(recipe: Recipe) -> ModelQueue:
        return ModelQueue(
            recipe,
            bounds,
            request_load=lambda: residency.request_load(residency.get(recipe.id)),
            released=lambda: residency.released(residency.get(recipe.id)),
            registry=AdapterFacts(names, service, metrics, console, recipe.id),
        )

    files = ModelFiles(state, device, settings.data_dir / "converted")
    await asyncio.to_thread(files.tidy)
    await asyncio.to_thread(tidy_merged, settings.data_dir / MERGED)
    entries = [await asyncio.to_thread(files.entry, recipe, queue_of(recipe)) for recipe in arranged.recipes]

    async def fetch(entry: ModelEntry, on_progress: sources.Fetched) -> None:
        await files.fetch(entry, on_progress)
        await adapters.register_from_recipe(entry.recipe)
        names.refresh()

    pool = SlotPool(
        unix_links(str(settings.run_dir)),
        settings.slots,
        lambda link: residency.watcher.died(link),
        engines_at_start(settings, recipes),
        lambda: residency.decide(),
    )
    figures = ResidencyRecord(metrics, state, device, console.decisions)
    on_cpu = device.kind == "cpu"
    host_budget = NO_LIMIT if on_cpu else device.host_budget
    table = Table(entries, pool, device.budgets, figures, memory_of(device), host_budget, counts_processes=on_cpu)
    residency = ResidencyManager(table, settings.patience, fetch, settings.working_margin)
    adapters = Adapters(names, residency, service)
    models = Models(names, residency, pool, state, files)
    model_set = ModelSet(
        recipes, shelf, shelf_recipes, names, residency, queue_of, files, state, metrics, adapters.register_from_recipe
    )
    providers = ProviderIndex(names, documents.providers, metrics.provider_attempt)
    routers = RouterStore(settings.data_dir / "routers", state, names, settings.bounds)
    reloading = RecipeReloader(model_set, settings.recipes, routers.open, providers.serve)

    gateway = Gateway(
        settings=settings,
        names=names,
        residency=residency,
        backends=[LocalBackend(residency, service.stored, metrics), ProviderBackend(providers)],
        sinks=[RequestMetrics(metrics), TeamMetrics(metrics), RequestLog()],
        models=models,
        adapters=adapters,
        combiner=Combiner(names, service, adapters),
        additions=Additions(model_set, names, residency, device, settings.trust_clients),
        editor=Editor(model_set, names, residency, state, adapters, files, device, settings.trust_clients),
        reloading=reloading,
        overview=Overview(device, names, models, residency, pool, bounds, metrics, lambda: model_set.faults),
        callers=keys,
        ledger=LedgerSink(ledger, round(settings.machine_price * MILLION), cold=settings.cold_starts == "caller"),
        usage=UsageReport(ledger, settings.currency, settings.provider_prices),
        limits=LimitSink(limiter, ledger, settings.max_audio_seconds),
        administration=Administration(keys),
        routers=routers,
        providers=providers,
        provider_models=Providers(providers, metrics),
        console=console,
        tracing=tracing,
    )
    metrics.budget.set(device.budget)
    metrics.host_budget.set(device.host_budget)
    await service.start()
    pool.start()

    async def begin() -> None:
        """After the port is open: preloads, adapters of the recipes meanwhile, then warm spare slots."""
        for entry in [e for e in entries if e.pinned or e.recipe.residency.preload]:
            try:
                residency.request_load(entry)
            except RoundhouseError as error:
                log.error("preload refused", extra={"model": entry.id, "cause": error.message})
        for entry in entries:
            if entry.path is not None or entry.broken is not None:
                await adapters.register_from_recipe(entry.recipe)  # else when its files have been fetched
        names.refresh()
        await reloading.begin()
        if gateway.phase == "starting":
            gateway.phase = "ready"
        if settings.prewarm:
            await keep_warm(pool, residency.table, device)

    background = [
        asyncio.create_task(residency.watcher.watch(settings.heartbeat, settings.hung_after), name="watch"),
        asyncio.create_task(begin(), name="begin"),
    ]
    if settings.watch:
        background.append(asyncio.create_task(reloading.watch(), name="watch-recipes"))
    try:
        yield gateway
    finally:
        gateway.phase = "stopping"
        for task in background:
            task.cancel()
        await providers.close()
        await residency.close()
        if tracing is not None:
            await tracing.close()
        await pool.close()
        await service.close()
        await ledger.close()
        await keys.close()
        await asyncio.to_thread(figures.close)
        await asyncio.to_thread(state.close)
        shutil.rmtree(settings.run_dir, ignore_errors=True)
