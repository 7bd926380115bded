"""A scripted engine for tests of policies, with gates to stop it and records of its calls. Never used by the server."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from models.messages import (
    AdapterRef,
    Chunk,
    EmbedRequest,
    EmbedResult,
    Event,
    HttpCall,
    LoadResult,
    MemoryFootprint,
    Progress,
    ResponseEnd,
    ResponseStart,
    Usage,
)
from models.protocol import Report
from registry.errors import Conflict, EngineFailed, RoundhouseError
from registry.recipes.definition import Recipe


class FakeAnswer:
    """An answer that counts its chunks as completion tokens."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self.usage = Usage(prompt_tokens=2)

    def __aiter__(self) -> "FakeAnswer":
        return self

    async def __anext__(self) -> Event:
        event = await anext(self._events)
        if isinstance(event, Chunk):
            self.usage = Usage(prompt_tokens=2, completion_tokens=self.usage.completion_tokens + 1)
        return event

    async def aclose(self) -> None:
        await self._events.aclose()


@dataclass
class FakeEngine:
    """Answers a chat call with `chunks` chunks, each of which waits until `gate` is open."""

    chunks: int = 3
    bytes: int = 100
    load_error: RoundhouseError | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    load_gate: asyncio.Event = field(default_factory=asyncio.Event)
    ping_gate: asyncio.Event = field(default_factory=asyncio.Event)
    recipe: Recipe | None = None
    cancelled: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)
    arrivals: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """Adapters on their way into a place, for which calls wait."""
    place_gate: asyncio.Event = field(default_factory=asyncio.Event)
    place_error: RoundhouseError | None = None
    in_use: Counter[str | None] = field(default_factory=Counter)
    """Running calls by adapter."""
    conflicts: int = 0
    """How often a placement or a drop finds the adapter in use."""
    full: int = 0
    """How many stagings find no room before one succeeds."""
    probe_answer: str = "fine"
    probe_status: int = 200
    probe_priorities: list[int] = field(default_factory=list)
    answered: list[tuple[str, str]] = field(default_factory=list)
    """('probe' or 'call', requested name), in the order of arrival."""
    asleep: MemoryFootprint | None = None
    """Its memory while asleep; None if it cannot sleep."""
    sleep_gate: asyncio.Event = field(default_factory=asyncio.Event)
    sleep_error: RoundhouseError | None = None
    wake_error: RoundhouseError | None = None
    sleeps: bool = False
    naps: int = 0
    on_broken: Callable[[EngineFailed], None] = lambda how: None
    running: int = 0
    most_running: int = 0
    closed: bool = False
    device: str = ""

    def __post_init__(self) -> None:
        self.gate.set()
        self.load_gate.set()
        self.ping_gate.set()
        self.sleep_gate.set()
        self.place_gate.set()

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        report(Progress(phase="weights", fraction=0.5))
        await self.load_gate.wait()
        if self.load_error is not None:
            raise self.load_error
        self.recipe, self.device = recipe, device
        return LoadResult(
            resident_bytes=self.bytes, weights_bytes=self.bytes, seconds={"weights": 0.1}, asleep=self.asleep,
            host_bytes=1 if self.asleep else 0,
        )  # fmt: skip

    async def sleep(self) -> MemoryFootprint:
        await self.sleep_gate.wait()
        assert not self.running, "a request met an engine that falls asleep"
        if self.sleep_error is not None:
            raise self.sleep_error
        assert self.asleep is not None
        self.sleeps = True
        self.naps += 1
        self.staged.clear()
        self.places.clear()
        return self.asleep

    async def wake(self) -> MemoryFootprint:
        assert self.sleeps
        await self.sleep_gate.wait()
        if self.wake_error is not None:
            raise self.wake_error
        self.sleeps = False
        return MemoryFootprint(device_bytes=self.bytes, host_bytes=self.asleep.host_bytes if self.asleep else 0)

    async def ping(self) -> None:
        await self.ping_gate.wait()

    async def close(self) -> None:
        self.closed = True

    def call(self, request: HttpCall) -> "FakeAnswer":
        return FakeAnswer(self._events(request))

    async def _events(self, request: HttpCall) -> AsyncGenerator[Event, None]:
        assert not self.sleeps, "a request met a sleeping engine"
        digest = None if request.adapter is None else request.adapter.digest
        if digest is not None and (arrival := self.arrivals.get(digest)) is not None:
            await asyncio.shield(arrival)
        if digest is not None and digest not in self.places:
            raise EngineFailed("the adapter is in no place")
        if b"cache_salt" in request.body:  # runtime.scheduling.probes
            self.answered.append(("probe", request.served))
            self.probe_priorities.append(request.priority)
            yield ResponseStart(status=self.probe_status, content_type="application/json")
            for letter in self.probe_answer:
                yield Chunk(data=b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % letter.encode())
            yield ResponseEnd(usage=Usage())
            return
        self.answered.append(("call", request.adapter.digest if request.adapter else request.served))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.in_use[digest] += 1
        sent = 0
        try:
            yield ResponseStart(status=200, content_type="text/event-stream")
            for i in range(self.chunks):
                await self.gate.wait()
                yield Chunk(data=f"data: {i} {request.display_name}\n\n".encode())
                sent += 1
            yield ResponseEnd(usage=Usage(prompt_tokens=2, completion_tokens=sent))
        except asyncio.CancelledError:
            self.cancelled.append(request.display_name)
            raise
        finally:
            self.running -= 1
            self.in_use[digest] -= 1

    @property
    def model(self) -> "FakeEngine":
        return self

    async def embed(self, request: EmbedRequest) -> tuple[EmbedResult, Usage]:
        await self.gate.wait()
        result = EmbedResult(vectors=b"\0\0\0\0" * len(request.inputs), dimensions=1, tokens=[1] * len(request.inputs))
        return result, Usage(prompt_tokens=len(request.inputs))

    async def stage(self, adapter: AdapterRef) -> None:
        assert not self.sleeps, "an adapter met a sleeping engine"
        if adapter.path.endswith("broken"):
            raise EngineFailed("the file is broken")
        if self.full:
            self.full -= 1
            raise Conflict("no host room", code="adapters_full")
        self.staged.append(adapter.digest)

    async def place(self, adapter: AdapterRef, evict: str | None, patience: float = 0.0) -> None:
        assert adapter.digest in self.staged, "placed before it was staged"
        assert adapter.digest not in self.arrivals, "placed twice at a time"
        arrival = self.arrivals[adapter.digest] = asyncio.get_running_loop().create_future()
        arrival.add_done_callback(lambda done: done.exception())
        try:
            while patience and (self.conflicts or (evict is not None and self.in_use[evict])):
                self.conflicts = max(0, self.conflicts - 1)
                await asyncio.sleep(0.001)
            await self.place_gate.wait()
            if evict is not None:
                assert not self.in_use[evict], "the place of an adapter that a call uses"
                self.places.remove(evict)
            if self.place_error is not None:
                raise self.place_error
            self.places.add(adapter.digest)
        except RoundhouseError as error:
            arrival.set_exception(
                EngineFailed(f"The adapter could not be loaded: {error.message}", code="adapter_failed")
            )
            raise
        else:
            arrival.set_result(None)
        finally:
            del self.arrivals[adapter.digest]

    async def drop(self, digest: str) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("the adapter is in use", code="adapter_in_use")
        self.places.discard(digest)
        self.dropped.append(digest)
