"""The chat engine falls asleep and wakes, on the real vLLM.

On a CPU its sleep frees nothing and is allowed only for the tests. They check everything around it: adapters, caches,
refusals, states and processes.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from models.chat import sleep
from models.chat.adapters import EngineAdapters
from models.chat.engine import VllmEngine
from models.chat.vllm import core, launch
from models.chat.vllm.cuda import sleep_memory
from models.messages import AdapterRef, Chunk, HttpCall, LoadResult
from registry.errors import EngineFailed
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.chat.nasty import TEXT

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


class Bench:
    def __init__(self, engine: VllmEngine, adapters: list[AdapterRef], loaded: LoadResult) -> None:
        self.engine, self.adapters, self.loaded = engine, adapters, loaded

    async def ask(self, adapter: AdapterRef | None = None, tokens: int = 24) -> str:
        served = adapter.digest if adapter else "tiny"
        body = {"model": served, "prompt": "a b c d e f g", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        call = HttpCall(path=TEXT, body=json.dumps(body).encode(), served=served, display_name="x", adapter=adapter)
        data = b"".join([event.data async for event in self.engine.call(call) if isinstance(event, Chunk)])
        return str(json.loads(data)["choices"][0]["text"])

    async def place(self, *adapters: AdapterRef) -> None:
        for adapter in adapters:
            await self.engine.stage(adapter)
            await self.engine.place(adapter, None)

    async def utility(self, call: Callable[..., Any]) -> Any:
        return await launch.ask(self.engine._engine, call)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("sleep")
    base = chat_fixtures.write_base(folder / "base")
    adapters = [chat_fixtures.write_adapter(folder / f"adapter-{i}", 200 + i) for i in range(3)]
    engine = VllmEngine()
    loaded = await engine.load(chat_fixtures.recipe(base, device_places=2), base, "cpu", lambda progress: None)
    yield Bench(engine, adapters, loaded)
    await engine.close()


async def test_an_engine_on_a_cpu_says_that_it_cannot_sleep_and_goes_on(bench: Bench) -> None:
    assert bench.loaded.asleep is None
    before = await bench.ask()
    with pytest.raises(EngineFailed, match="cannot sleep"):
        await bench.engine.sleep()
    with pytest.raises(EngineFailed, match="loaded"):
        await bench.engine.wake()
    assert await bench.ask() == before
    assert await bench.utility(core.sleep_facts) == [0, 0, 0, 0]


async def test_without_a_gpu_no_memory_is_prepared_for_a_sleep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep, "TICK", 0.0)
    for more in (True, False):
        assert await launch.ask(bench.engine._engine, sleep_memory.prepare_sleep, more) == [0, 0]
    assert bench.engine._sleeper is not None
    await bench.engine._sleeper.prepare(lambda: True)
    assert await bench.ask()


async def test_adapters_do_not_outlive_a_sleep_and_answer_the_same_when_placed_again(bench: Bench) -> None:
    one, two, three = bench.adapters
    assert bench.engine._sleeper is not None
    bench.engine._sleeper.able = True
    await bench.place(one, two)
    base, first, second = await bench.ask(), await bench.ask(one), await bench.ask(two)
    assert len({base, first, second}) == 3
    for _ in range(2):
        await bench.engine.sleep()
        assert await bench.utility(core.held_adapters) == [[], []]
        assert await bench.engine._engine.is_sleeping()
        await bench.engine.ping()
        for work in (bench.ask, lambda: bench.ask(one), lambda: bench.engine.stage(three), bench.engine.sleep):
            with pytest.raises(EngineFailed, match="asleep"):
                await work()
        await bench.engine.wake()
        for adapter in (one, two):
            with pytest.raises(EngineFailed, match="never answers"):
                await bench.ask(adapter)
        assert await bench.ask() == base
        await bench.place(two)
        await bench.place(one)  # into the place that `two` had
        answers = await asyncio.gather(bench.ask(one), bench.ask(two), bench.ask())
        assert answers == [first, second, base]
    await bench.engine.drop(one.digest)
    await bench.place(three)
    assert await bench.ask(three) not in {base, first, second}


async def is_refused(bench: Bench, adapters: EngineAdapters) -> bool:
    """Return whether the core refuses to forget adapters during a request.

    False if the call came after the request's last token, as on a busy machine.
    """
    waiting = asyncio.create_task(bench.ask(tokens=480))
    while await bench.utility(core.forget_adapters) != ["busy"]:
        if waiting.done():
            break
    try:
        await adapters.forget()
    except EngineFailed as error:
        return "in the engine" in str(error)
    finally:
        assert await waiting
    return False


async def test_an_engine_does_not_sleep_during_a_request(bench: Bench) -> None:
    adapters = bench.engine._adapters
    assert adapters is not None
    asking = asyncio.create_task(bench.ask())
    while not adapters.calls:
        await asyncio.sleep(0)
    with pytest.raises(EngineFailed, match="still run"):
        await bench.engine.sleep()
    assert await asking
    while not await is_refused(bench, adapters):  # the core has its own count, in case the one above is wrong
        pass


async def test_a_core_that_is_killed_asleep_is_noticed(bench: Bench) -> None:
    await bench.engine.sleep()
    (process,) = launch.processes(bench.engine._engine)
    os.kill(process.pid, signal.SIGKILL)
    while bench.engine._state == "asleep":
        await asyncio.sleep(0.01)
    with pytest.raises(EngineFailed, match="SIGKILL"):
        await bench.engine.ping()
    with pytest.raises(EngineFailed, match="SIGKILL"):
        await bench.engine.wake()
