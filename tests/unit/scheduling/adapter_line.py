"""The queue of a model with adapters, connected to a scripted engine by a real socket."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from models.messages import AdapterRef, Chunk, HttpCall
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe
from registry.records import Probe
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.fair import DEFAULT_REQUEST, QueueRequest
from runtime.scheduling.queue import ModelQueue
from runtime.slots import frames
from runtime.slots.link import SlotLink
from tests.fakes.engine import FakeEngine
from tests.fakes.pool import FakePool

RIGHT, WRONG = Probe("say it", "fine"), Probe("say it", "other")
"""The scripted engine answers 'fine' to every probe."""


def adapter(letter: str, path: str = "/store") -> AdapterRef:
    return AdapterRef(digest="sha256:" + letter * 64, path=f"{path}/{letter}", rank=8, bytes=100)


class Registry:
    """The gateway's registry of adapters. `notes` are the steps that are reported to it."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[Probe | None, ...]] = {}
        self.damaged: EngineFailed | None = None
        self.notes: list[tuple[str, str]] = []
        self.gone: list[str] = []
        self.swaps: list[tuple[str, str | None]] = []

    async def check(self, digest: str) -> None:
        if self.damaged is not None:
            raise self.damaged

    def probes(self, digest: str) -> tuple[Probe | None, ...]:
        return self.known.get(digest, ())

    def dropped(self, digest: str) -> None:
        self.gone.append(digest)

    def swapped(self, digest: str, evicted: str | None, staging: float, placing: float) -> None:
        self.swaps.append((digest, evicted))

    def note(self, step: str, seconds: float, outcome: str) -> None:
        self.notes.append((step, outcome))


class World:
    """A queue, its engine and its clock."""

    registry: Registry
    clock: float = 0.0
    queue: ModelQueue
    engine: FakeEngine
    link: SlotLink
    pool: FakePool


@asynccontextmanager
async def line_with_adapters(folder: Path) -> AsyncIterator[World]:
    w = World()
    recipe = Recipe.model_validate(
        {
            "id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
            "memory": {"adapters": {"device": 2, "host": 4}}, "batching": {"max_requests": 4},
            "queue": {"max_wait": 200},
        }
    )  # fmt: skip
    w.pool = FakePool(folder, 1, FakeEngine)
    w.registry = Registry()
    w.queue = ModelQueue(
        recipe, WaitingBound(100), request_load=lambda: None, released=lambda: None, registry=w.registry,
        clock=lambda: time.monotonic() + w.clock,
    )  # fmt: skip
    w.link = await w.pool.take("vllm")
    w.engine = w.pool.engines[0]
    async with w.link.call(lambda uid: frames.Load(uid, recipe.model_dump_json().encode(), "x", "cpu")) as call:
        await call.done()
    w.queue.open(w.link)
    yield w
    await w.pool.close()


async def ask(
    w: World, ref: AdapterRef | None, probe: Probe | None = None, claim: QueueRequest = DEFAULT_REQUEST
) -> int:
    """Return the number of events, counting each token of a chunk."""
    async with await w.queue.acquire(ref, probe=probe, claim=claim) as lease:
        call = HttpCall(path="/", body=b"", served="s", display_name="s", adapter=ref)
        async with lease.link.call(lambda uid: frames.Call.of(uid, call)) as answer:
            events = [event async for event in answer.events()]
    return sum(event.data.count(b"\n\n") if isinstance(event, Chunk) else 1 for event in events)


async def dropped(w: World, ref: AdapterRef) -> None:
    async with asyncio.timeout(200):
        while ref.digest not in w.engine.dropped:
            await asyncio.sleep(0.001)
