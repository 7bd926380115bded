"""The interface of engines. A slot calls its engine from one event loop.

| state  | load                    | work (call, embed, ...) | sleep        | wake         | ping         | close |
|--------|-------------------------|-------------------------|--------------|--------------|--------------|-------|
| new    | loads, reports progress | EngineFailed            | EngineFailed | EngineFailed | EngineFailed | -     |
| loaded | EngineFailed            | answers                 | sleeps       | EngineFailed | answers      | frees |
| asleep | EngineFailed            | EngineFailed            | EngineFailed | wakes        | answers      | frees |
| closed | EngineFailed            | EngineFailed            | EngineFailed | EngineFailed | EngineFailed | -     |

Cancelling a task aborts its work in the engine. A failed sleep or wake leaves the engine broken, and its process must
be ended. Neither is cancelled half-way. Before a sleep the caller drains the engine. Only an engine whose
`LoadResult.asleep` is set can sleep; others raise EngineFailed and stay loaded.

Every method raises only errors of `registry.errors`: a client's fault as BadRequest (or a subclass), anything else as
EngineFailed. Library errors are mapped by type here. A cancelled call never leaves an engine half-changed.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

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
M_co = TypeVar("M_co", covariant=True)


class Engine(Protocol):
    """The life of a loaded model."""

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        """Load the weights in folder `path` onto `device` and warm up. Runs once."""
        ...

    async def ping(self) -> None:
        """Return once the inner loop has answered. Raises EngineFailed if the engine is broken."""
        ...

    async def sleep(self) -> MemoryFootprint:
        """Free the device's memory, including adapters. Returns the memory still in use."""
        ...

    async def wake(self) -> MemoryFootprint:
        """Wake with the same weights, checked by a known answer. Raises EngineFailed."""
        ...

    async def close(self) -> None:
        """Stop the engine and its child processes. Safe to call twice."""
        ...


@runtime_checkable
class Breakable(Protocol):
    """An engine with its own processes, which can end at any time."""

    on_broken: Callable[[EngineFailed], None]
    """Called once, on the event loop, with the cause if a loaded engine ends by itself, before its calls end."""


@runtime_checkable
class MetricsSource(Protocol):
    """An engine with its own metrics."""

    async def metrics(self) -> bytes:
        """Return Prometheus text, also while the engine sleeps."""
        ...


class ChatAnswer(Protocol):
    """The events of one chat call: ResponseStart, then Chunks, then ResponseEnd."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None:
        """End the call now, and return once its work has left the engine."""
        ...

    @property
    def usage(self) -> Usage:
        """Usage, exact at any time, also after a cancelled or closed call."""
        ...


class ChatEngine(Engine, Protocol):
    def call(self, request: HttpCall) -> ChatAnswer:
        """Start a request. If its adapter is being moved into a place, the request waits for that.

        An adapter without a place is EngineFailed, never the base; one that fails to arrive raises its own error.
        """
        ...

    async def stage(self, adapter: AdapterRef) -> None:
        """Read a file into host memory, off the engine's loop. Raises Unfit."""
        ...

    async def place(self, adapter: AdapterRef, evict: str | None, patience: float = 0.0) -> None:
        """Put a staged adapter into a place, that of digest `evict` if given.

        Raises Conflict if `evict` is still in use after `patience` seconds, or no place is free. Requests with the
        adapter may come once this is called, even before it first awaits.
        """
        ...

    async def drop(self, digest: str) -> None:
        """Remove an adapter from the engine, if it is there."""
        ...


class ModelEngine(Engine, Protocol[M_co]):
    """An engine whose loaded model answers requests."""

    @property
    def model(self) -> M_co:
        """The loaded model. Raises EngineFailed unless it is loaded and awake."""
        ...


class EmbedModel(Protocol):
    async def embed(self, request: EmbedRequest) -> tuple[EmbedResult, Usage]: ...


class RerankModel(Protocol):
    async def rerank(self, request: RerankRequest) -> tuple[RerankResult, Usage]: ...


class TranscribeModel(Protocol):
    def transcribe(self, request: TranscribeRequest) -> AsyncGenerator[TranscriptInfo | Segment | Usage, None]:
        """Yield TranscriptInfo, then Segments, with Usage in between and at the end."""
        ...
