"""`roundhouse serve` with a chat engine that follows a script, for benchmarks of the gateway and of fleets.

    python -m benchmarks.peers.scripted_server serve --recipes FILE ...

A thousand slow streams would need a thousand places in a real engine. Everything but the engine is the real server:
gateway, endpoints, scheduler, slot, frames, socket. Importing this module replaces the engine factory, and each worker
process imports it again.
"""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

import models.engines
from models.messages import Chunk, Event, HttpCall, LoadResult, MemoryFootprint, ResponseEnd, ResponseStart, Usage
from models.protocol import Engine, Report
from registry.bounds import USUAL, Bounds
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe

_EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"scripted",'
    b'"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}\n\n'
)


_WHOLE = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1700000000,"model":"scripted","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":1}}'
)


class ScriptedAnswer:
    """An answer of `max_tokens` events, one every `seed` milliseconds.

    A request without a stream gets one whole answer after the same total time.
    """

    def __init__(self, request: HttpCall) -> None:
        body = msgspec.json.decode(request.body)
        self._left, self._pause = int(body["max_tokens"]), int(body["seed"]) / 1e3
        self._events = self._script() if body.get("stream") else self._whole()
        self.usage = Usage(prompt_tokens=1)

    def __aiter__(self) -> "ScriptedAnswer":
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()

    async def _whole(self) -> AsyncGenerator[Event, None]:
        await asyncio.sleep(self._left * self._pause)
        self.usage = Usage(prompt_tokens=1, completion_tokens=self._left)
        yield ResponseStart(status=200, content_type="application/json")
        yield Chunk(data=_WHOLE % self._left)
        yield ResponseEnd(usage=self.usage)

    async def _script(self) -> AsyncGenerator[Event, None]:
        yield ResponseStart(status=200, content_type="text/event-stream; charset=utf-8")
        for sent in range(self._left):
            yield Chunk(data=_EVENT)
            self.usage = Usage(prompt_tokens=1, completion_tokens=sent + 1)
            await asyncio.sleep(self._pause)
        usage = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % self._left
        yield Chunk(data=usage + b"data: [DONE]\n\n")
        yield ResponseEnd(usage=self.usage)


class ScriptedEngine:
    """A chat engine without a model, which refuses adapters."""

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        return LoadResult(resident_bytes=1 << 20, weights_bytes=1 << 20, seconds={"weights": 0.0})

    async def ping(self) -> None:
        return

    async def sleep(self) -> MemoryFootprint:
        raise EngineFailed("the scripted engine does not sleep")

    async def wake(self) -> MemoryFootprint:
        raise EngineFailed("the scripted engine does not sleep")

    async def close(self) -> None:
        return

    def call(self, request: HttpCall) -> ScriptedAnswer:
        return ScriptedAnswer(request)

    async def stage(self, adapter: object) -> None:
        raise EngineFailed("the scripted engine has no adapters")

    async def place(self, adapter: object, evict: str | None, patience: float = 0.0) -> None:
        raise EngineFailed("the scripted engine has no adapters")

    async def drop(self, digest: str) -> None:
        return


def _create(engine: str, task: str, bounds: Bounds = USUAL) -> Engine:
    return ScriptedEngine()


models.engines.create = _create

if __name__ == "__main__":
    from runtime.cli.main import main

    main()
