"""A gateway whose slots are scripts: real names, real relay and real HTTP; only the engine's events are canned."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from fastapi import FastAPI

from models.messages import Event, Request
from registry.catalog import Catalog
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe
from runtime.gateway.core import Chosen, Gateway
from runtime.http.app import finish
from runtime.http.middleware import Shell
from runtime.http.routes import routes
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState
from runtime.scheduling.queue import ModelQueue
from runtime.server.device import Device
from runtime.server.settings import Settings
from runtime.slots import frames
from runtime.slots.call import FrameCall

ENGINES = {"chat": "vllm", "embed": "sentence-transformers", "rerank": "sentence-transformers"}
Script = Callable[[Any], Sequence[Event | RoundhouseError]]


def recipe(id_: str, task: str) -> Recipe:
    engine = ENGINES.get(task, "faster-whisper")
    return Recipe.model_validate(
        {"id": id_, "version": 1, "task": task, "source": {"path": "x"}, "engine": {"name": engine}}
    )


@dataclass
class ScriptedLink:
    """Answers each call with what `script` gives for its request. `gate` holds the events after `free` ones back."""

    script: Script = lambda _: ()
    requests: list[Any] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    free: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    look: Callable[[Any], None] = lambda _: None
    calls: dict[int, FrameCall] = field(default_factory=dict)
    _tasks: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.set()

    def call(self, make: Callable[[int], frames.ToSlot]) -> FrameCall:
        uid = len(self.requests) + 1
        frame = make(uid)
        assert isinstance(frame, frames.Call)
        self.requests.append(frame.request)
        self.look(frame.request)
        self.started.set()
        call = FrameCall(self, uid)
        self.calls[uid] = call
        task = asyncio.create_task(self._play(call, frame.request))
        self._tasks.add(task)
        return call

    async def _play(self, call: FrameCall, request: Request) -> None:
        for number, event in enumerate(self.script(request)):
            if number >= self.free:
                await self.gate.wait()
            if isinstance(event, RoundhouseError):
                call.put(frames.Failed.of(call.uid, event))
                return
            call.put(frames.Emit(call.uid, event))
        await self.gate.wait()
        call.put(frames.Done(call.uid))

    def cancel(self, uid: int) -> None:
        """As a slot does: the call ends as soon as its work has left the engine, here at once."""
        self.cancelled.append(uid)
        self.calls[uid].put(frames.Done(uid))

    def forget(self, uid: int) -> None:
        pass


@dataclass
class FakeLease:
    link: ScriptedLink
    released: list[bool]
    queued_seconds: float = 0.001
    ticket: Any = field(default_factory=lambda: SimpleNamespace(aborted=None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.append(True)


class FakeGateway(Gateway):
    """Models 'chat', 'embed', 'rerank', 'speech'; each has a scripted link in `links`."""

    def __init__(self, folder: Path, recipes: Sequence[Recipe] | None = None, **settings: Any) -> None:
        tasks = {"chat": "chat", "embed": "embed", "rerank": "rerank", "speech": "transcribe"}
        recipes = recipes or [recipe(id_, task) for id_, task in tasks.items()]
        super().__init__(
            Settings(recipes=(), data_dir=folder / "data", run_dir=folder / "run", **settings),
            recipes,
            Device("cpu", "cpu", "cpu", 1 << 30, 1 << 30),
        )
        self.catalog = Catalog(recipes)
        self.links = {r.id: ScriptedLink() for r in recipes}
        self.released: list[bool] = []
        self.refuse: RoundhouseError | None = None
        self._queues = {r.id: ModelQueue(r, self.bounds, nothing_now, nothing_now) for r in recipes}
        entries = {
            r.id: ModelEntry(
                recipe=r, path=folder, revision="rev", needed=1, needed_detail="", load_seconds=1.0,
                queue=self._queues[r.id], state=ModelState.READY,
            )
            for r in recipes
        }  # fmt: skip
        self.residency = SimpleNamespace(entries=entries, get=entries.__getitem__, held=lambda: 0)  # type: ignore[assignment]
        self.pool = SimpleNamespace(size=3, free=2, restarts=0, prewarmed=lambda: [])  # type: ignore[assignment]

    async def lease(self, chosen: Chosen) -> Any:
        if self.refuse is not None:
            raise self.refuse
        return FakeLease(self.links[chosen.entry.id], self.released)

    def outcomes(self) -> dict[tuple[str, str, str], float]:
        """(model, endpoint, outcome) to count, from the metrics."""
        return {
            (s.labels["model"], s.labels["endpoint"], s.labels["outcome"]): s.value
            for metric in self.metrics.requests.collect()
            for s in metric.samples
            if s.name.endswith("_total")
        }


async def nothing() -> None:
    return None


def nothing_now() -> None:
    return None


def application(gateway: Gateway) -> FastAPI:
    """The application as the server shell makes it, without LitServe around it."""
    app = FastAPI()
    app.add_middleware(Shell, start=nothing, stop=nothing)
    for path, endpoint, methods in routes(gateway):
        app.add_api_route(path, endpoint, methods=methods)
    finish(app, gateway)
    return app


class Wire:
    """One request by bare ASGI, whose client can leave: `body` parts arrive, then `leave` lets the disconnect in."""

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
    """The client of `wire` leaves while `model` works: that work is cancelled and its lease given back."""
    link = gateway.links[model]
    link.gate.clear()
    task = asyncio.create_task(wire.run())
    await link.started.wait()
    wire.leave.set()
    await asyncio.wait_for(task, 200)
    assert link.cancelled == [1]
    assert gateway.released == [True]
