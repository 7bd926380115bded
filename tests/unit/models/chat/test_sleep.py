"""The steps around vLLM's sleep and their order, with a scripted vLLM and made-up bytes of the device."""

import json
import weakref
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat import sleep
from models.chat.sleep import Sleeper
from models.chat.vllm.cuda import sleep_memory
from models.messages import MemoryFootprint
from registry.errors import EngineFailed

GIB = 2**30


class ScriptedVllm:
    """vLLM with 20 GiB in the sleeping allocator, 15 of them weights. `leaks` bytes are not freed."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.asleep = False
        self.free, self.leaks, self.pinned = 50 * GIB, 0, 0
        self.words = "the same words"
        self.blocks, self.no_memory = 0, False
        self.stays_asleep = False
        self.cache_in_use = False
        self.engine_core = self

    async def call_utility_async(self, _method: str, name: str, arguments: list[Any]) -> list[Any]:
        if name == "sleep_facts":
            return [20 * GIB, 16 * GIB, self.free, self.pinned]
        self.log.append(name)
        if name == "prepare_sleep":
            self.blocks += arguments == [True]
            return [sleep_memory.FAILED if self.no_memory else self.blocks, 3]
        return ["done"]

    async def reset_prefix_cache(self) -> bool:
        self.log.append("reset")
        return not self.cache_in_use

    async def sleep(self, level: int) -> None:
        self.log.append(f"sleep {level}")
        self.asleep, self.free, self.pinned = True, self.free + 20 * GIB - self.leaks, 16 * GIB

    async def wake_up(self) -> None:
        self.log.append("wake")
        self.asleep = self.stays_asleep

    async def is_sleeping(self) -> bool:
        return self.asleep

    async def app(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        body = json.loads((await receive())["body"])
        assert (scope["path"], body["model"], body["temperature"]) == ("/v1/completions", "m", 0)
        self.log.append("answer")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"choices": [{"text": self.words}]}).encode()})


class Adapters:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def forget(self) -> None:
        self._log.append("forget")


@pytest.fixture
def vllm() -> ScriptedVllm:
    return ScriptedVllm()


def sleeper(vllm: ScriptedVllm) -> Sleeper:
    return Sleeper(vllm, vllm.app, "m", Adapters(vllm.log), 22 * GIB, lambda: 3 * GIB)  # type: ignore[arg-type]


async def test_adapters_and_caches_are_dropped_before_and_an_answer_is_compared_after(vllm: ScriptedVllm) -> None:
    one = sleeper(vllm)
    assert not one.able
    assert await one.expected() == MemoryFootprint(device_bytes=2 * GIB, host_bytes=19 * GIB)
    assert one.able
    assert await one.down() == MemoryFootprint(device_bytes=2 * GIB, host_bytes=19 * GIB)
    assert await one.up() == MemoryFootprint(device_bytes=22 * GIB, host_bytes=19 * GIB)
    await one.down()
    before = ["forget", "reset", "sleep 1"]
    assert vllm.log == ["answer", *before, "wake", "reset", "answer", *before]


async def test_only_bytes_that_the_device_reports_as_free_count(
    vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep, "SEEN_WITHIN", 0.03)
    one = sleeper(vllm)
    await one.expected()
    vllm.leaks = 15 * GIB
    assert (await one.down()).device_bytes == 17 * GIB


async def test_another_answer_after_the_wake_means_other_weights(vllm: ScriptedVllm) -> None:
    one = sleeper(vllm)
    await one.expected()
    await one.down()
    vllm.words = "the same word"
    with pytest.raises(EngineFailed, match="other weights"):
        await one.up()


async def test_a_failed_wake_or_a_cache_that_cannot_be_emptied_is_an_error(vllm: ScriptedVllm) -> None:
    one = sleeper(vllm)
    await one.expected()
    vllm.cache_in_use = True
    with pytest.raises(EngineFailed, match="prefix cache"):
        await one.down()
    assert "sleep 1" not in vllm.log
    vllm.cache_in_use = False
    await one.down()
    vllm.stays_asleep = True
    with pytest.raises(EngineFailed, match="did not wake"):
        await one.up()


async def test_memory_is_pinned_block_by_block_while_nothing_runs(
    vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep, "TICK", 0.0)
    one, looks = sleeper(vllm), iter([True] * 9 + [False] + [True] * 10 + [False] + [True] * 11)
    await one.expected()
    await one.prepare(lambda: next(looks))
    assert vllm.blocks == 3
    assert list(looks) == [], "nine quiet checks are too few, and each request restarts the count"
    await one.down()
    assert vllm.log[-4:] == ["forget", "reset", "prepare_sleep", "sleep 1"], (
        "prepared blocks are freed before the sleep"
    )


async def test_without_host_memory_a_sleep_is_not_prepared_and_goes_on(
    vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "roundhouse.chat")
    monkeypatch.setattr(sleep, "TICK", 0.0)
    vllm.no_memory = True
    one = sleeper(vllm)
    await one.expected()
    await one.prepare(lambda: True)
    assert "not enough host memory" in caplog.text
    assert (await one.down()).host_bytes == 19 * GIB


class Blocks:
    """Pinned blocks that are alive, of which `most` fit."""

    def __init__(self, most: int = 9) -> None:
        self.alive: list[int] = []
        self.most = most

    def pinned(self, size: int) -> object:
        if len(self.alive) >= self.most:
            raise RuntimeError("CUDA error: out of memory")
        block = Block()
        self.alive.append(size)
        weakref.finalize(block, self.alive.remove, size)
        return block


class Block:
    """Replaces a tensor."""


def test_blocks_are_kept_until_all_are_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise torch would return the first one again for the second."""
    memory = Blocks()
    monkeypatch.setattr(sleep_memory, "pinned", memory.pinned)
    blocks = sleep_memory.SleepBlocks([4, 16, 4])
    assert blocks.pin_next() == [1, 3]
    assert memory.alive == [16], "the largest first"
    assert blocks.pin_next() == [2, 3]
    assert memory.alive == [16, 4]
    assert blocks.pin_next() == [3, 3]
    assert memory.alive == []
    assert blocks.pin_next() == [3, 3]


def test_blocks_are_freed_when_the_sleep_begins_or_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, core = Blocks(most=1), SimpleNamespace()
    monkeypatch.setattr(sleep_memory, "pinned", memory.pinned)
    monkeypatch.setattr(sleep_memory, "kept_blocks", lambda: [8, 8])
    assert sleep_memory.prepare_sleep(core, True) == [1, 2]
    assert sleep_memory.prepare_sleep(core, False) == [0, 0]
    assert memory.alive == []
    memory.alive.append(1)
    assert sleep_memory.prepare_sleep(core, True) == [sleep_memory.FAILED, 2]
    assert memory.alive == [1]


def test_without_cuda_there_is_nothing_to_prepare() -> None:
    assert sleep_memory.prepare_sleep(SimpleNamespace(), True) == [0, 0]
