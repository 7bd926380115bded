"""What happens around vLLM's sleep, in which order, with a scripted vLLM: the device's bytes are made up here."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from models.chat import sleep
from models.chat.sleep import Sleeper
from models.messages import MemoryFootprint
from registry.errors import EngineFailed

GIB = 2**30


class ScriptedVllm:
    """20 GiB in the allocator that sleeps, 15 of them weights; `leaks` of them do not come back."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.asleep = False
        self.free, self.leaks, self.pinned = 50 * GIB, 0, 0
        self.words = "the same words"
        self.stays_asleep = False
        self.cache_in_use = False
        self.engine_core = self

    async def call_utility_async(self, _method: str, name: str, arguments: list[Any]) -> list[Any]:
        if name == "sleep_facts":
            return [20 * GIB, 16 * GIB, self.free, self.pinned]
        self.log.append(name)
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


async def test_adapters_and_caches_are_gone_before_and_the_answer_is_proved_after(vllm: ScriptedVllm) -> None:
    one = sleeper(vllm)
    assert not one.able
    assert await one.expected() == MemoryFootprint(device_bytes=2 * GIB, host_bytes=19 * GIB)
    assert one.able
    assert await one.down() == MemoryFootprint(device_bytes=2 * GIB, host_bytes=19 * GIB)
    assert await one.up() == MemoryFootprint(device_bytes=22 * GIB, host_bytes=19 * GIB)
    await one.down()
    before = ["forget", "reset", "sleep 1"]
    assert vllm.log == ["answer", *before, "wake", "reset", "answer", *before]


async def test_only_what_the_device_shows_as_free_counts(vllm: ScriptedVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep, "SEEN_WITHIN", 0.03)
    one = sleeper(vllm)
    await one.expected()
    vllm.leaks = 15 * GIB
    assert (await one.down()).device_bytes == 17 * GIB


async def test_other_words_after_the_wake_are_other_weights(vllm: ScriptedVllm) -> None:
    one = sleeper(vllm)
    await one.expected()
    await one.down()
    vllm.words = "the same word"
    with pytest.raises(EngineFailed, match="other weights"):
        await one.up()


async def test_what_does_not_wake_or_cannot_be_emptied_is_an_error(vllm: ScriptedVllm) -> None:
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
