"""The gateway: joins registry, adapters, residency and slots into what the endpoints call.

One instance, on LitServe's API process's event loop. Endpoints use four things of it: `choose` (what a name means),
`lease` (the hold on a resident model and its adapter), `observe` (metrics), and the managers for our own interface.
"""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from adapters.service import AdapterService
from adapters.types import Base, StoredAdapter
from models.engines import engine_version
from models.estimate import estimate
from models.messages import AdapterRef
from models.sources import resolve as sources
from registry.catalog import Catalog, Target
from registry.errors import BadRequest, RoundhouseError, Unavailable, Unfit
from registry.recipes.definition import Recipe, Task, Tier
from registry.records import Adapter, AdapterKey, Probe
from registry.state.database import State
from runtime.gateway.adapter_facts import AdapterFacts
from runtime.gateway.metrics import Metrics
from runtime.gateway.prefer import PREFERENCE, NotYet
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.prewarming import keep_warm, wanted_at_once
from runtime.residency.record import Found, ResidencyRecord, found
from runtime.residency.states import ModelState
from runtime.residency.victims import NO_LIMIT
from runtime.scheduling.lease import Lease
from runtime.scheduling.queue import Bounds, ModelQueue
from runtime.server import logs
from runtime.server.device import Device, memory_of
from runtime.server.settings import Settings
from runtime.slots.pool import SlotPool

log = logging.getLogger("roundhouse.gateway")


def reference(stored: StoredAdapter) -> AdapterRef:
    """A stored adapter as engines take it."""
    return AdapterRef(digest=stored.digest, path=str(stored.path), rank=stored.rank, bytes=stored.bytes)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a request's `model` means: the model's row, and the adapter with its label if one was named."""

    name: str
    """As the client wrote it."""
    entry: ModelEntry
    adapter: StoredAdapter | None = None
    label: str | None = None
    """`name@sha256:…` for the response header."""
    adapter_name: str | None = None
    probe: Probe | None = None
    """Of the version that was named."""

    @property
    def ref(self) -> AdapterRef | None:
        return None if self.adapter is None else reference(self.adapter)

    def headers(self) -> dict[str, str]:
        """X-Roundhouse-Model and, where one answers, X-Roundhouse-Adapter."""
        found = {"X-Roundhouse-Model": f"{self.entry.id}@{self.entry.revision}"}
        if self.label is not None:
            found["X-Roundhouse-Adapter"] = self.label
        return found


class Gateway:
    """See the module. `start` and `stop` run with the application's lifespan."""

    def __init__(self, settings: Settings, recipes: Sequence[Recipe], device: Device) -> None:
        self.settings, self.recipes, self.device = settings, tuple(recipes), device
        self.metrics = Metrics()
        self.bounds = Bounds(settings.max_waiting)
        self.ready = False
        self.stopping = False
        self.starting_faults: dict[str, str] = {}

    # --- life -----------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open the state, connect the slots, register the recipes' adapters, begin preloads."""
        logs.configure(self.settings.log_level)  # LitServe has set up its own since the fork
        self.state = await asyncio.to_thread(State, self.settings.data_dir)
        self.service = AdapterService(self.settings.data_dir, self.state, leased=self._leased)
        self.pool = SlotPool(
            str(self.settings.run_dir), self.settings.slots, lambda link: self.residency.died(link),
            wanted_at_once(self.settings, self.recipes), lambda: self.residency.decide(),
        )  # fmt: skip
        self._queues: dict[str, ModelQueue] = {}
        entries = [await asyncio.to_thread(self._entry, recipe) for recipe in self.recipes]
        self.residency = ResidencyManager(
            entries, self.pool, self.device.budget, self.device.name,
            ResidencyRecord(self.metrics, self.state, self.device), memory_of(self.device),
            self.settings.patience, self.device.host_budget or NO_LIMIT, self._fetch, self.device.kind == "cpu",
        )  # fmt: skip
        self.metrics.budget.set(self.device.budget)
        self.metrics.host_budget.set(self.device.host_budget)
        self.refresh()
        for note in self.catalog.notes:
            log.warning(note)
        await self.service.start()
        self.pool.start()
        self._background = [
            asyncio.create_task(self.residency.watch(self.settings.heartbeat, self.settings.hung_after), name="watch"),
            asyncio.create_task(self._begin(), name="begin"),
        ]

    async def _begin(self) -> None:
        """After the port is open: preloads, adapters of the recipes meanwhile, then warm spare slots."""
        for entry in [e for e in self.residency.entries.values() if e.pinned or e.recipe.residency.preload]:
            try:
                self.residency.want(entry)
            except RoundhouseError as error:
                log.error("preload refused", extra={"model": entry.id, "cause": error.message})
        for recipe in self.recipes:
            if self.residency.get(recipe.id).path is not None or self.residency.get(recipe.id).broken is not None:
                await self._register(recipe)  # else when its files have been fetched
        self.refresh()
        for adapter in self.state.adapters.all():
            if adapter.key.base in self.residency.entries:
                self.hold_pins(adapter)
        self.ready = True
        if self.settings.prewarm:
            await keep_warm(self.pool, self.residency.table, self.device)

    async def _register(self, recipe: Recipe) -> None:
        """The adapters of a recipe whose names are not there yet."""
        for wanted in recipe.adapters:
            if any(a.key == AdapterKey(recipe.id, wanted.name) for a in self.service.list(recipe.id)):
                continue
            try:
                base = self.base(self.residency.get(recipe.id), wanted.name)
                await self.service.register(wanted.name, base, wanted.source)
                if wanted.pin:
                    await self.service.pin(recipe.id, wanted.name, True)
            except RoundhouseError as error:
                faults = "; ".join(error.faults) if isinstance(error, Unfit) else ""
                self.starting_faults[f"{recipe.id}:{wanted.name}"] = f"{error.message} {faults}".strip()
                log.error("adapter of a recipe refused", extra={"adapter": wanted.name, "cause": error.message})

    def tier(self, entry: ModelEntry) -> Tier:
        """Where the model is, pre-warmed slots counted."""
        warm = (slot.prewarmed for slot in self.pool.prewarmed() if slot.warm)
        if entry.tier is Tier.DISK and entry.recipe.engine.name in warm:
            return Tier.PREWARMED
        return entry.tier

    async def stop(self) -> None:
        """After the last response: stop deciding, close what is open. The slots are LitServe's to end."""
        self.stopping = True
        for task in self._background:
            task.cancel()
        await self.residency.close()
        await self.pool.close()
        await self.service.close()
        await asyncio.to_thread(self.state.close)
        shutil.rmtree(self.settings.run_dir, ignore_errors=True)

    def _entry(self, recipe: Recipe) -> ModelEntry:
        """A row of the model table. A model whose files are not there is listed, and says why when it is asked for."""
        files, broken = None, None
        try:
            files = self._files(recipe, sources.resolve(recipe.source, Path.cwd(), download=False))
        except RoundhouseError as error:
            if error.code != "source_not_downloaded":  # that is fetched when somebody wants it
                broken = Unavailable(f"Model '{recipe.id}' cannot be loaded: {error.message}", code="model_broken")
                log.error("model cannot be loaded", extra={"model": recipe.id, "cause": error.message})
        queue = self._queues[recipe.id] = ModelQueue(
            recipe,
            self.bounds,
            want=lambda: self.residency.want(entry),
            released=lambda: self.residency.released(entry),
            registry=AdapterFacts(self, recipe.id),
        )
        entry = ModelEntry(
            recipe=recipe, path=None, revision="unknown", needed=0, needed_detail="", load_seconds=10.0, queue=queue,
            pinned=self.state.models.pins().get(recipe.id, recipe.residency.pin), broken=broken,
        )  # fmt: skip
        if files is not None:
            found(entry, files, self.state, self.device)
        return entry

    async def _fetch(self, entry: ModelEntry, told: sources.Fetched) -> None:
        source = entry.recipe.source
        path = await asyncio.to_thread(lambda: sources.resolve(source, Path.cwd(), fetched=told))
        files = await asyncio.to_thread(self._files, entry.recipe, path)
        await asyncio.to_thread(found, entry, files, self.state, self.device)
        await self._register(entry.recipe)
        self.refresh()

    def _files(self, recipe: Recipe, path: Path) -> Found:
        """What a model's files tell. Raises Unfit for what cannot be loaded here."""
        _check_version(recipe)
        needs = estimate(recipe, path, self.device.kind)
        on_host = (needs.host, needs.host_adapters) if self.device.kind != "cpu" else (0, 0)
        revision = sources.revision(recipe.source, path)
        return Found(path, revision, needs.total, needs.explain(), *on_host, recipe.expected.load_seconds)

    def base(self, entry: ModelEntry, name: str) -> Base:
        """The model as the base of an adapter `name`. Raises as `Catalog.check_adapter`; Unavailable without files."""
        self.catalog.check_adapter(AdapterKey(entry.id, name))
        if entry.broken is not None:
            raise entry.broken
        if entry.path is None:
            raise Unavailable(
                f"The files of model '{entry.id}' are not here yet: load it first, then its adapters can be checked.",
                code="source_not_downloaded", retry_after=entry.load_seconds,
            )  # fmt: skip
        return Base(entry.id, entry.path, entry.recipe.memory.adapters.max_rank)

    def refresh(self) -> None:
        """Take a new snapshot of names after the registry has changed."""
        self.catalog = Catalog(self.recipes, self.state.adapters.all(), self.state.models.aliases())

    def hold_pins(self, adapter: Adapter) -> None:
        """Have the placement hold the current version of a pinned adapter, and no other version of it.

        Raises Conflict when no place would stay open.
        """
        queue = self._queues[adapter.key.base]
        current = adapter.current.digest if adapter.pinned else None
        for version in adapter.versions:
            if version.digest != current:
                queue.unpin_adapter(version.digest)
        if adapter.pinned:
            queue.pin_adapter(reference(self.service.stored(adapter.current)))

    def queue(self, entry: ModelEntry) -> ModelQueue:
        return self._queues[entry.id]

    def _leased(self, digest: str) -> bool:
        return any(queue.holds(digest) for queue in self._queues.values())

    # --- requests -------------------------------------------------------------------------------------------------
    def choose(self, name: object, *tasks: Task, adapter: str | None = None) -> Chosen:
        """What `name` means for one of `tasks`; `adapter` names one beside the model (LoRAX's adapter_id).

        Raises BadRequest for what is no name or the wrong task, NotFound with what exists.
        """
        if not isinstance(name, str) or not name:
            raise BadRequest("Say which model: 'model' must be a string such as 'starter-chat'.", param="model")
        catalog = self.catalog
        target = catalog.resolve_pair(name, adapter, *tasks) if adapter else catalog.resolve(name, *tasks)
        return self._chosen(name, target)

    def _chosen(self, name: str, target: Target) -> Chosen:
        entry = self.residency.get(target.recipe.id)
        if target.version is None:
            return Chosen(name, entry)
        stored = self.service.stored(target.version)
        label = f"{target.adapter_name}@{stored.digest}"
        return Chosen(name, entry, stored, label, target.adapter_name, target.version.probe)

    async def lease(self, chosen: Chosen) -> Lease:
        """Wait for the model, a turn and the adapter's place, as the client prefers (`runtime.gateway.prefer`).

        Raises QueueFull, Unavailable, the load's error, or NotYet.
        """
        if self.stopping:
            raise Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
        entry, preference = chosen.entry, PREFERENCE.get()
        if entry.state is not ModelState.READY:
            self.metrics.cold.labels(entry.id).inc()
            if preference.respond_async:
                self.residency.want(entry)
                raise NotYet(entry.id, entry.remaining_load_seconds)
        queue = self.queue(entry)
        try:
            lease = await queue.acquire(chosen.ref, preference.wait, chosen.probe)
        except Unavailable as error:
            if error.code == "queue_timeout" and entry.state is not ModelState.READY:
                error.retry_after = max(error.retry_after or 1.0, entry.remaining_load_seconds)
            raise
        self.metrics.queue.labels(chosen.entry.id).observe(lease.queued_seconds)
        return lease


def _check_version(recipe: Recipe) -> None:
    """Raise Unfit when the installed engine is not one that the recipe's flags are known to work with."""
    have = engine_version(recipe.engine.name)
    if not SpecifierSet(recipe.engine.versions).contains(have, prereleases=True):
        raise Unfit(
            f"the recipe wants {recipe.engine.name} {recipe.engine.versions}, {have} is installed. "
            "Install a version that fits, or check the recipe's flags and widen engine.versions.",
            code="engine_version",
        )
