"""The interface of engines. A slot calls its engine from one event loop.

| state  | load                    | work (call, embed, ...) | sleep        | wake         | ping         | close |
|--------|-------------------------|-------------------------|--------------|--------------|--------------|-------|
| new    | loads, reports progress | EngineFailed            | EngineFailed | EngineFailed | EngineFailed | -     |
| loaded | EngineFailed            | answers                 | sleeps       | EngineFailed | answers      | frees |
| asleep | EngineFailed            | EngineFailed            | EngineFailed | wakes        | answers      | frees |
| closed | EngineFailed            | EngineFailed            | EngineFailed | EngineFailed | EngineFailed | -     |

Cancelling the task of some work aborts it in the engine. A sleep or wake that fails leaves the engine broken: its
process must be ended. Neither is cancelled half-way. Nothing may run while an engine falls asleep: the caller has
drained it. Only an engine whose `LoadResult.asleep` is set can sleep; the others raise EngineFailed and go on.

Every method raises errors of `registry.errors` only: a client's fault as BadRequest (or a subclass), anything
else as EngineFailed. Library errors are mapped by type at this border. An engine is never left half-changed by
a cancelled call.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from models.messages import (
    AdapterRef,
    EmbedRequest,
    EmbedResult,
    Event,
    HttpCall,
    LoadResult,
    MemoryFootprint,
    Progress,
    RerankRequest,
    RerankResult,
    Segment,
    TranscribeRequest,
    TranscriptInfo,
    Usage,
)
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe

Report = Callable[[Progress], None]


class Engine(Protocol):
    """The life of a loaded model."""

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        """Load the weights in folder `path` onto `device` and warm up. Runs once."""
        ...

    async def ping(self) -> None:
        """Return when the inner loop has answered; EngineFailed when it is broken."""
        ...

    async def sleep(self) -> MemoryFootprint:
        """Free the device's memory, adapters included; returns what is still held."""
        ...

    async def wake(self) -> MemoryFootprint:
        """Wake with the same weights, checked by a known answer, or EngineFailed."""
        ...

    async def close(self) -> None:
        """Stop the engine and its child processes. Safe to call twice."""
        ...


@runtime_checkable
class Breakable(Protocol):
    """An engine with own processes, which can end at any time."""

    on_broken: Callable[[EngineFailed], None]
    """Called on the event loop, once, when a loaded engine has ended by itself, with how. Its calls end after that."""


@runtime_checkable
class MetricsSource(Protocol):
    """An engine that counts for itself what it does."""

    async def metrics(self) -> bytes:
        """Prometheus text; also while the engine sleeps."""
        ...


class ChatAnswer(Protocol):
    """The events of one chat call: ResponseStart, then Chunks, then ResponseEnd."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None:
        """End the call now and return when its work has left the engine."""
        ...

    @property
    def usage(self) -> Usage:
        """Exact at any time, also after a cancelled or closed call."""
        ...


class ChatEngine(Engine, Protocol):
    def call(self, request: HttpCall) -> ChatAnswer:
        """Begin a request. Where its adapter is on the way into a place, the request waits for that.

        An adapter that is in no place is EngineFailed, never the base; one that does not arrive is its own error.
        """
        ...

    async def stage(self, adapter: AdapterRef) -> None:
        """Read a file into host memory, off the engine's loop. Raises Unfit."""
        ...

    async def place(self, adapter: AdapterRef, evict: str | None, patience: float = 0.0) -> None:
        """Put a staged adapter into a place, that of digest `evict` if given.

        Raises Conflict where `evict` is still in use after `patience` seconds, or no place is free. From the moment of
        this call, before it first waits for anything, requests with the adapter may come.
        """
        ...

    async def drop(self, digest: str) -> None:
        """Forget an adapter everywhere in the engine; nothing happens if it is not there."""
        ...


class EmbedEngine(Engine, Protocol):
    async def embed(self, request: EmbedRequest) -> tuple[EmbedResult, Usage]: ...


class RerankEngine(Engine, Protocol):
    async def rerank(self, request: RerankRequest) -> tuple[RerankResult, Usage]: ...


class TranscribeEngine(Engine, Protocol):
    def transcribe(self, request: TranscribeRequest) -> AsyncIterator[TranscriptInfo | Segment | Usage]:
        """Yield TranscriptInfo, then Segments, with Usage now and then and at the end."""
        ...
