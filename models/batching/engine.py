"""The engine of models that answer in batches across requests: embeddings, reranking and speech."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from models.batching.worker import Batcher, BatchLimits
from models.flags import check_flags
from models.lifecycle import Lifecycle, LoadPhases, Sleepable
from models.messages import LoadResult, MemoryFootprint
from models.protocol import Report
from registry.recipes.definition import Recipe

M = TypeVar("M")


def limits_of(recipe: Recipe, step_seconds: float) -> BatchLimits:
    """Step limits of a recipe. `step_seconds`: a step's length unless a flag says so."""
    batching = recipe.batching
    return BatchLimits(
        tokens=batching.max_tokens,
        items=batching.max_requests,
        waiting=recipe.queue.max_waiting + batching.max_requests,
        step_seconds=float(str(recipe.engine.flags.get("step_seconds", step_seconds))),
    )


@dataclass(slots=True)
class Loaded(Generic[M]):
    """A loaded model."""

    model: M
    """Answers requests, with methods that only its task knows."""
    batcher: Batcher[Any, Any]
    sleeper: Sleepable
    result: LoadResult


Load = Callable[[Recipe, Path, str, LoadPhases, AsyncExitStack], Awaitable[Loaded[M]]]
"""Loads a model onto a device. It registers on the stack what releases the model, also after a failed load."""


class BatchedEngine(Generic[M]):
    """See `models.protocol` for what each method does in each state. what: the engine's name in errors."""

    def __init__(self, what: str, load: Load[M]) -> None:
        self._lifecycle, self._load, self._ending = Lifecycle(what), load, AsyncExitStack()
        self._loaded: Loaded[M] | None = None

    @property
    def model(self) -> M:
        """The loaded model. Raises EngineFailed unless it is loaded and awake."""
        self._lifecycle.check()
        assert self._loaded is not None
        return self._loaded.model

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        async with self._lifecycle.loading(recipe, report, self.close) as phases:
            check_flags(recipe)
            loaded = self._loaded = await self._load(recipe, path, device, phases, self._ending)
        return loaded.result

    async def sleep(self) -> MemoryFootprint:
        return await self._lifecycle.sleep(self._sleeper)

    async def wake(self) -> MemoryFootprint:
        return await self._lifecycle.wake(self._sleeper)

    @property
    def _sleeper(self) -> Sleepable | None:
        return None if self._loaded is None else self._loaded.sleeper

    async def ping(self) -> None:
        self._lifecycle.check_alive()
        assert self._loaded is not None
        await self._loaded.batcher.ping()

    async def close(self) -> None:
        self._lifecycle.close()
        self._loaded = None
        await self._ending.aclose()
