"""A gateway with scripted slots: names, relay and HTTP are real, only the engine's events are scripted."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from fastapi import FastAPI
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.types import StoredAdapter
from batches.callbacks.addresses import CallbackAddresses
from batches.intake.stored_files import FileLimits
from batches.service import BatchService
from batches.store import BatchStore
from console.state import Console
from launch.checks.checker import FileChecker
from launch.recipe_store import RecipeFiles, StoredRecipes
from models.messages import Chunk, EmbedRequest, Event, HttpCall, RerankRequest, TranscribeRequest
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe
from registry.recipes.provider import Provider
from registry.records import Version
from registry.storage.reserve import DiskReserve
from runtime.config.device import Device
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.combine import Combiner
from runtime.gateway.core import Gateway
from runtime.gateway.files import ModelFiles
from runtime.gateway.launch.additions import Additions
from runtime.gateway.launch.editor import Editor
from runtime.gateway.launch.merged import MERGED, MergedModels
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.local.backend import LocalBackend
from runtime.gateway.local.rooms import LineRooms
from runtime.gateway.metrics import Metrics
from runtime.gateway.models import Models
from runtime.gateway.names import Names
from runtime.gateway.providers.backend import ProviderBackend
from runtime.gateway.providers.index import ProviderIndex
from runtime.gateway.providers.store import ProviderStore
from runtime.gateway.providers.views import Providers
from runtime.gateway.record import RequestRecord, Sink
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.services import Services
from runtime.gateway.sinks.operators import ConsoleSink, RequestMetrics, TeamMetrics
from runtime.gateway.sinks.tenants import LedgerSink, LimitSink
from runtime.gateway.tracing.spans import Spans
from runtime.gateway.uploads import Uploads
from runtime.gateway.views.live import LiveSampler
from runtime.gateway.views.overview import Overview
from runtime.http.app import finish
from runtime.http.guard.access import dialect_of
from runtime.http.guard.layers import Layer
from runtime.http.middleware import ContextMiddleware, set_caller
from runtime.http.routes import routes
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots import frames
from runtime.slots.link import FrameCall, SlotLink
from tenants.caller import Caller
from tenants.keys.keyring import OPEN
from tenants.ledger.ledger import Ledger
from tenants.ledger.view import UsageReport
from tenants.limits.limiter import Limiter
from tenants.limits.stored import QueueLimiter, StorageLimiter
from tenants.responses.store import ResponseStore
from tenants.watch import Administration, KeyWatch
from tests.fakes.gateway import NoAdapters

ENGINES = {"chat": "vllm", "embed": "sentence-transformers", "rerank": "sentence-transformers"}
DECODER = msgspec.msgpack.Decoder(HttpCall | EmbedRequest | RerankRequest | TranscribeRequest)
Script = Callable[[Any], Sequence[Event | RoundhouseError]]


def recipe(id_: str, task: str) -> Recipe:
    engine = ENGINES.get(task, "faster-whisper")
    return Recipe.model_validate(
        {"id": id_, "version": 1, "task": task, "source": {"path": "x"}, "engine": {"name": engine}}
    )


@dataclass
class ScriptedLink:
    """Answers each call with the events of `script`. All events after the first `free` ones wait for `gate`."""

    script: Script = lambda _: ()
    requests: list[Any] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    free: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    look: Callable[[Any], None] = lambda _: None
    tokens: tuple[int, int, int] | None = None
    """The token counts that each chunk reports."""
    calls: dict[int, FrameCall] = field(default_factory=dict)
    _tasks: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.set()

    def call(self, make: Callable[[int], frames.ToSlot]) -> FrameCall:
        uid = len(self.requests) + 1
        frame = make(uid)
        assert isinstance(frame, frames.Call)
        request = DECODER.decode(frame.request)
        self.requests.append(request)
        self.look(request)
        self.started.set()
        call = FrameCall(self, uid)
        self.calls[uid] = call
        task = asyncio.create_task(self._play(call, request))
        self._tasks.add(task)
        return call

    async def _play(self, call: FrameCall, request: Any) -> None:
        for number, event in enumerate(self.script(request)):
            if number >= self.free:
                await self.gate.wait()
            if isinstance(event, RoundhouseError):
                call.put(frames.CallFailed.of(call.uid, event))
                return
            call.put(frames.Emit(call.uid, event, self.tokens if isinstance(event, Chunk) else None))
        await self.gate.wait()
        call.put(frames.CallDone(call.uid))

    async def counted(self, timeout: float) -> bytes:
        return b""

    def cancel(self, uid: int) -> None:
        """Cancel a call as a slot does, but its work leaves the engine immediately, so that it ends at once."""
        self.cancelled.append(uid)
        self.calls[uid].put(frames.CallDone(uid))

    def forget(self, uid: int) -> None:
        pass


class Records:
    """A sink that keeps its records."""

    def __init__(self) -> None:
        self.all: list[RequestRecord] = []

    def take(self, record: RequestRecord) -> None:
        self.all.append(record)


class GivenSettings(Settings):
    """Settings that are not read from the environment, which would take longer than most requests of a test."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class FakeGateway:
    """A gateway with models 'chat', 'embed', 'rerank' and 'speech', each with a scripted link in `links`.

    Names, queues, leases and use cases are real. Residency is a table in which every model is ready.
    """

    def __init__(
        self,
        folder: Path,
        recipes: Sequence[Recipe] | None = None,
        *,
        state: Any = None,
        service: Any = None,
        sinks: Sequence[Sink] = (),
        keyring: Any = OPEN,
        ledger: Ledger | None = None,
        providers: Sequence[Provider] = (),
        limiter: Limiter | None = None,
        watch: KeyWatch | None = None,
        tracing: Spans | None = None,
        responses: ResponseStore | None = None,
        **settings: Any,
    ) -> None:
        tasks = {"chat": "chat", "embed": "embed", "rerank": "rerank", "speech": "transcribe"}
        self.recipes = recipes = recipes or [recipe(id_, task) for id_, task in tasks.items()]
        for name in ("data", "run"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.settings = GivenSettings(recipes=(), data_dir=folder / "data", run_dir=folder / "run", **settings)
        self.metrics, self.records, self.bounds = Metrics(), Records(), WaitingBound(self.settings.max_waiting)
        self.state = state or SimpleNamespace(
            adapters=SimpleNamespace(all=lambda: (), ever=lambda: ()),
            routers=SimpleNamespace(all=lambda: (), reserved=frozenset()),
            models=SimpleNamespace(aliases=lambda: {}),
        )
        self.names = Names(recipes, self.state)
        self.service = service or SimpleNamespace(
            list=lambda _base=None: [], incoming=folder / "incoming", stored_digests=frozenset()
        )
        self.links = {r.id: ScriptedLink() for r in recipes}
        self.released: list[bool] = []
        self.refuse: RoundhouseError | None = None
        self.queues = {
            r.id: ModelQueue(r, self.bounds, self._request_load, lambda: self.released.append(True), NoAdapters())
            for r in recipes
        }
        self.entries = {
            r.id: ModelEntry(
                recipe=r, path=folder, revision="rev", needed=1, needed_detail="", load_seconds=1.0,
                queue=self.queues[r.id], state=ModelState.READY,
            )
            for r in recipes
        }  # fmt: skip
        self.pool: Any = SimpleNamespace(size=3, free=2, restarts=0, prewarmed=lambda: [])
        self.residency: Any = SimpleNamespace(
            entries=self.entries,
            get=self.entries.__getitem__,
            next_to_leave=lambda: (),
            request_load=lambda _entry: self._request_load(),
            check_given_up=lambda _entry: None,
            expected_wait=lambda entry: entry.remaining_load_seconds,
            unload=lambda _entry, _force: nothing(),
            exchanger=SimpleNamespace(waiting=lambda _: None, forget=lambda _: None),
            table=SimpleNamespace(
                used_bytes=lambda device=None: 0, lost={}, spawn=lambda work, name: asyncio.create_task(work, name=name)
            ),
        )
        residency = self.residency
        device = Device("cpu", "cpu", "cpu", 1 << 30, 1 << 30)
        reserve, checker = DiskReserve(self.settings.data_dir, self.settings.disk_reserve), FileChecker()
        files = ModelFiles(self.state, device, folder / "converted", reserve, checker)
        models = Models(self.names, residency, self.pool, self.state, files)
        for model, queue in self.queues.items():
            queue.open(cast(SlotLink, self.links[model]))
        ledger = ledger or Ledger(folder)
        self.routers = RouterStore(folder / "routers", self.state, self.names, self.settings.bounds)
        self.storage = StorageLimiter()
        adapters = Adapters(self.names, residency, self.service, self.storage)
        model_set = ModelSet(
            recipes, RecipeFiles(folder / "recipes"), StoredRecipes((), ()), self.names, residency,
            lambda r: ModelQueue(r, self.bounds, self._request_load, self._released, NoAdapters()), files, self.state,
            self.metrics, adapters.register_from_recipe,
        )  # fmt: skip
        self.providers = ProviderIndex(self.names, providers, self.metrics.provider_attempt)
        added = self.settings.data_dir / "providers"
        provider_store = ProviderStore(added, self.names, self.providers, providers)
        usage, console = UsageReport(ledger), Console(self.settings.port)
        overview = Overview(device, self.names, models, residency, self.pool, self.bounds, self.metrics, tuple)
        keys = watch or KeyWatch(self.settings.keys, ledger.enable)
        limits = FileLimits(
            disk=self.settings.files_disk, largest=self.settings.max_file, line_bytes=self.settings.max_json,
            values=self.settings.bounds.json_values,
        )  # fmt: skip
        self.queue_limiter = QueueLimiter()
        self.batches = BatchService(
            BatchStore(ledger, self.settings.data_dir, keys.tables, lambda: keys.derive("webhooks")),
            self.settings.data_dir,
            limits,
            CallbackAddresses(self.settings.callback_networks),
            self.queue_limiter,
            reserve=reserve,
        )
        self.line_rooms = LineRooms(self.names, residency, provider_of=self.providers.provider_of)
        services = Services(
            settings=self.settings,
            models=models,
            adapters=adapters,
            combiner=Combiner(self.names, self.service, adapters),
            merged=MergedModels(self.settings.data_dir / MERGED, model_set, residency),
            additions=Additions(model_set, self.names, residency, device, False, checker),
            editor=Editor(
                model_set,
                self.names,
                residency,
                self.state,
                files,
                device,
                False,
                self.settings.bounds.recipe_versions,
            ),
            reloader=RecipeReloader(model_set, (), self.routers.open, provider_store.serve),
            overview=overview,
            keyring=lambda: keyring,
            administration=Administration(keys),
            usage=usage,
            line_rooms=self.line_rooms,
            batch_forecasts=self.metrics.batch_forecast,
            batches=self.batches,
            responses=responses or ResponseStore(folder),
            routers=self.routers,
            providers=self.providers,
            provider_models=Providers(self.providers, self.metrics),
            provider_store=provider_store,
            uploads=Uploads(self.settings.max_uploads, self.settings.max_adapter, self.settings.bounds, reserve),
            reserve=reserve,
            console=console,
            live=LiveSampler(self.names, overview, console, usage.currency),
        )
        self.gateway = Gateway(
            services,
            self.names,
            [ProviderBackend(self.providers), LocalBackend(self.names, residency, self.service_stored, self.metrics)],
            ledger=LedgerSink(ledger),
            limits=LimitSink(limiter or Limiter(), ledger, self.settings.max_audio_seconds),
            sinks=[
                *sinks, RequestMetrics(self.metrics), TeamMetrics(self.metrics), self.records, ConsoleSink(console),
                self.line_rooms,
            ],
            transcripts=console.texts,
            tracing=tracing,
        )  # fmt: skip

    def service_stored(self, version: Version) -> StoredAdapter:
        return cast(StoredAdapter, self.service.stored(version))

    def _released(self) -> None:
        self.released.append(True)

    def _request_load(self) -> None:
        if self.refuse is not None:
            raise self.refuse

    def outcomes(self) -> dict[tuple[str, str, str], float]:
        """Return counts from the metrics by (model, endpoint, outcome)."""
        return {
            (s.labels["model"], s.labels["endpoint"], s.labels["outcome"]): s.value
            for metric in self.metrics.requests.collect()
            for s in metric.samples
            if s.name.endswith("_total")
        }


async def nothing() -> None:
    return None


@cache
def built() -> list[BaseRoute]:
    """Build the routes once for all applications, as FastAPI needs a fifth of a second. They hold no state."""
    app = FastAPI()
    first = len(app.router.routes)
    for path, endpoint, methods in routes():
        app.add_api_route(path, endpoint, methods=methods)
    return app.router.routes[first:]


def application(fake: FakeGateway, layers: Sequence[Layer] = ()) -> FastAPI:
    """Return the application as the server makes it, but without LitServe, and with only the given layers."""
    app = FastAPI()
    for layer, options in layers:
        app.add_middleware(layer, **options)
    app.add_middleware(
        ContextMiddleware, gateway=lambda: fake.gateway, dialect_of=dialect_of, start=nothing, stop=nothing
    )
    app.router.routes.extend(built())
    finish(app, fake.recipes)
    return app


class CallerLayer:
    """Sets the caller instead of the guard, inside the middleware that makes the context."""

    def __init__(self, app: ASGIApp, caller: Caller) -> None:
        self._app, self._caller = app, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        set_caller(scope, self._caller)
        await self._app(scope, receive, send)


class Wire:
    """One request over plain ASGI. After the parts of `body` its client stays until `leave` disconnects it."""

    def __init__(self, app: Any, path: str, body: Sequence[bytes], headers: dict[str, str] | None = None) -> None:
        self.app, self.body = app, list(body)
        self.leave = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.first = asyncio.Event()
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        self.scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": raw, "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("c", 1),
            "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        self.complete = True

    async def receive(self) -> dict[str, Any]:
        if self.body:
            part = self.body.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.body) or not self.complete}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))
        if message.get("body"):
            self.first.set()

    async def run(self) -> None:
        await self.app(self.scope, self.receive, self.send)


async def left(wire: Wire, gateway: FakeGateway, model: str) -> None:
    """Disconnect the client of `wire` while `model` works. Check that the work is cancelled and its lease returned."""
    link = gateway.links[model]
    link.gate.clear()
    task = asyncio.create_task(wire.run())
    await link.started.wait()
    wire.leave.set()
    await asyncio.wait_for(task, 200)
    assert link.cancelled == [1]
    assert gateway.released == [True]
