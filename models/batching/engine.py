"""Base of engines that batch across requests: life, batcher, sleep, heartbeat."""

import asyncio
from typing import Generic

from models.batching.plan import P
from models.batching.worker import Batcher, BatchLimits, R
from models.lifecycle import Lifecycle, Sleepable
from models.messages import MemoryFootprint
from registry.recipes.definition import Recipe


def limits_of(recipe: Recipe, step_seconds: float) -> BatchLimits:
    """Step limits of a recipe. `step_seconds`: a step's length unless a flag says so."""
    batching = recipe.batching
    return BatchLimits(
        tokens=batching.max_tokens,
        items=batching.max_requests,
        waiting=recipe.queue.max_waiting + batching.max_requests,
        step_seconds=float(str(recipe.engine.flags.get("step_seconds", step_seconds))),
    )


class BatchedEngine(Generic[P, R]):
    """Base of embedding, rerank and speech engines: items of P, results of R.

    A subclass loads and works; its load sets `_batcher`, and `_sleeper` if its weights can move. See `models.protocol`
    for what each method does in each state.
    """

    def __init__(self, what: str) -> None:
        self._lifecycle = Lifecycle(what)
        self._batcher: Batcher[P, R] | None = None
        self._sleeper: Sleepable | None = None

    def _let_go(self) -> None:
        """Drop all references to the model, and what it started. Runs at each close."""
        raise NotImplementedError

    def _free(self) -> None:
        """Give the model's memory back, in a thread, once no reference is left."""

    async def sleep(self) -> MemoryFootprint:
        return await self._lifecycle.sleep(self._sleeper)

    async def wake(self) -> MemoryFootprint:
        return await self._lifecycle.wake(self._sleeper)

    async def ping(self) -> None:
        self._lifecycle.check_alive()
        assert self._batcher is not None
        await self._batcher.ping()

    async def close(self) -> None:
        self._lifecycle.close()
        batcher, self._batcher = self._batcher, None
        self._sleeper = None
        self._let_go()
        if batcher is not None:
            await asyncio.to_thread(batcher.close)
            del batcher  # it refers to the model
            await asyncio.to_thread(self._free)
