"""The gateway: one object, whole from the start, that everything outside this room uses.

A request: `record` it, `resolve` its name, `lease` the target, run a call (`runtime.gateway.backend`).
Everything else: `models`, `adapters`, `combiner`, `overview`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from registry.errors import NotFound, Unavailable
from runtime.gateway.adapters import Adapters
from runtime.gateway.backend import LOCAL, Backend, Coming, Lease, Target
from runtime.gateway.combine import Combiner
from runtime.gateway.context import RequestContext
from runtime.gateway.models import Models
from runtime.gateway.names import Names, Wanted
from runtime.gateway.overview import Overview
from runtime.gateway.record import Recorder, Sink
from runtime.residency.manager import ResidencyManager
<<<<<<< HEAD
from runtime.residency.prewarming import keep_warm, wanted_at_once
from runtime.residency.record import Found, ResidencyRecord, forget, found
from runtime.residency.states import ModelState
from runtime.residency.victims import NO_LIMIT
from runtime.scheduling.lease import Lease
from runtime.scheduling.queue import Bounds, ModelQueue
from runtime.server import logs
from runtime.server.device import Device, MemoryWatch
=======
>>>>>>> main
from runtime.server.settings import Settings

Phase = Literal["starting", "ready", "stopping"]


class Gateway:
    """One per server, on its event loop. Made by `runtime.gateway.opening`.

    Args:
        backends: what can answer; the first one that handles a target does.
        sinks: each takes the record of every request.
    """

<<<<<<< HEAD
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
            ResidencyRecord(self.metrics, self.state, self.device), MemoryWatch(self.device).back,
            self.settings.patience, self.device.host_budget or NO_LIMIT, self._fetch, self.device.kind == "cpu",
            self.settings.working_margin,
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
=======
    def __init__(
        self,
        settings: Settings,
        names: Names,
        residency: ResidencyManager,
        backends: Sequence[Backend],
        sinks: Sequence[Sink],
        models: Models,
        adapters: Adapters,
        combiner: Combiner,
        overview: Overview,
    ) -> None:
        self.settings, self.models, self.adapters, self.overview = settings, models, adapters, overview
        self.combiner = combiner
        self._names, self._residency, self._backends, self._sinks = names, residency, tuple(backends), tuple(sinks)
        self.phase: Phase = "starting"
        """ready: the adapters of recipes are there too. Requests are answered before that."""
>>>>>>> main

    @contextmanager
    def record(self, context: RequestContext, endpoint: str) -> Iterator[Recorder]:
        """Around everything that is done for one request. At its end, whatever the end, each sink gets its record."""
        recorder = Recorder(context, endpoint, self._sinks)
        try:
<<<<<<< HEAD
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

    async def forget_estimate(self, entry: ModelEntry) -> None:
        """Plan with what its files tell again, and not with what was measured."""
        files = await asyncio.to_thread(self._files, entry.recipe, entry.path) if entry.path is not None else None
        forget(entry, files, self.state, self.device)

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
=======
            yield recorder
        except BaseException as error:
            recorder.failed(error)
>>>>>>> main
            raise
        recorder.done()

    def resolve(self, wanted: Wanted) -> Target:
        """Raises BadRequest for what is no name or the wrong task, NotFound with what exists."""
        name, found = self._names.resolve(wanted)
        model = found.recipe.id
        revision = self._residency.get(model).revision
        return Target(name, model, revision, found.adapter_name, found.version, LOCAL)

    def coming(self, target: Target) -> Coming | None:
        """How far it is; None: it can answer at once."""
        return self._backend(target).coming(target)

    @asynccontextmanager
    async def lease(self, recorder: Recorder, target: Target) -> AsyncIterator[Lease]:
        """Wait for a turn on the target, as the client prefers.

        Raises QueueFull, Unavailable, DeadlineExceeded, the load's error, or NotYet.
        """
        if self.phase == "stopping":
            raise Unavailable("This server is shutting down.", code="shutting_down", retry_after=10)
        async with self._backend(target).lease(recorder.context, target) as lease:
            recorder.leased(lease)
            yield lease

    def _backend(self, target: Target) -> Backend:
        for backend in self._backends:
            if backend.handles(target):
                return backend
        raise NotFound(f"Nothing here answers for '{target.asked}'.", param="model")
