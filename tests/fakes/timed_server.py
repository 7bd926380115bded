"""`roundhouse serve` with a chat engine that has the times of the simulation (`fleet.simulation.scenario.Times`).

    python -m tests.fakes.timed_server serve --recipes FILE ...

A request has `max_tokens` tokens in its answer and `seed` tokens in its prompt. As in the simulation, a step takes
longer the more requests run when the request starts, and adapters take time to be staged and placed. Everything but the
engine is the real server.
"""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

import models.engines
from benchmarks.peers.scripted_server import _EVENT, ScriptedEngine
from fleet.simulation.scenario import Times
from models.messages import AdapterRef, Chunk, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from models.protocol import Engine
from registry.bounds import USUAL, Bounds

TIMES = Times()


class TimedAnswer:
    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events, self.usage = events, Usage()

    def __aiter__(self) -> "TimedAnswer":
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()


class TimedEngine(ScriptedEngine):
    def __init__(self) -> None:
        self._running = 0
        self._arrivals: dict[str, asyncio.Event] = {}

    async def stage(self, adapter: object) -> None:
        await asyncio.sleep(TIMES.stage)

    async def place(self, adapter: object, evict: str | None, patience: float = 0.0) -> None:
        assert isinstance(adapter, AdapterRef)
        arrived = self._arrivals[adapter.digest] = asyncio.Event()
        await asyncio.sleep(TIMES.place)
        del self._arrivals[adapter.digest]
        arrived.set()

    def call(self, request: HttpCall) -> TimedAnswer:  # type: ignore[override]
        return TimedAnswer(self._answer(request))

    async def _answer(self, request: HttpCall) -> AsyncGenerator[Event, None]:
        body = msgspec.json.decode(request.body)
        tokens, prompt = int(body["max_tokens"]), int(body["seed"])
        self._running += 1
        try:
            step = TIMES.step + TIMES.step_more * self._running
            if request.adapter is not None and (arrival := self._arrivals.get(request.adapter.digest)) is not None:
                await arrival.wait()
            loop = asyncio.get_running_loop()
            due = loop.time() + prompt / TIMES.prompt_rate + step
            for sent in range(tokens):
                await asyncio.sleep(due - loop.time())
                if sent == 0:
                    yield ResponseStart(status=200, content_type="text/event-stream; charset=utf-8")
                yield Chunk(data=_EVENT)
                due += step
            usage = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens
            yield Chunk(data=usage + b"data: [DONE]\n\n")
            yield ResponseEnd(usage=Usage(prompt_tokens=prompt, completion_tokens=tokens))
        finally:
            self._running -= 1


def _create(engine: str, task: str, bounds: Bounds = USUAL) -> Engine:
    return TimedEngine()


models.engines.create = _create

if __name__ == "__main__":
    from runtime.cli.main import main

    main()
