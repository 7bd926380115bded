"""When and which libraries are imported in advance."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from models.engines import prewarmed_bytes
from runtime.config.device import Device
from runtime.residency import watcher
from runtime.residency.states import ModelState

S = ModelState
GIB = 2**30


def model(engine: str, state: ModelState, broken: object = None) -> Any:
    return SimpleNamespace(recipe=SimpleNamespace(engine=SimpleNamespace(name=engine)), state=state, broken=broken)


class Pool:
    """Records the engines to prewarm."""

    def __init__(self) -> None:
        self.prewarm_calls: list[str] = []

    def prewarmed(self) -> list[Any]:
        return [
            SimpleNamespace(prewarmed=engine, prewarmed_bytes=prewarmed_bytes(engine)) for engine in self.prewarm_calls
        ]

    async def prewarm(self, engine: str) -> bool:
        if engine not in self.prewarm_calls:
            self.prewarm_calls.append(engine)
        return True


async def warmed(models: list[Any], budget: int, used_bytes: int = 0, on_host: int = 0, gpu: bool = False) -> list[str]:
    """Return the engines that three checks prewarm. With a GPU, the budget is that of host memory."""
    pool = Pool()
    table = SimpleNamespace(
        entries=dict(enumerate(models)), used_bytes=lambda: used_bytes, used_host_bytes=lambda: on_host
    )
    device = Device("cpu", "cpu", "cpu", budget, budget)
    if gpu:
        device = Device("cuda", "cuda:0", "a GPU", 80 * GIB, 80 * GIB, budget, budget)
    keeping = asyncio.create_task(watcher.keep_warm(pool, table, device))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    keeping.cancel()
    return pool.prewarm_calls


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "EVERY_SECONDS", 0)


def test_the_first_slots_import_engines_of_models_loaded_at_the_start() -> None:
    def recipe(engine: str, **residency: bool) -> Any:
        about = {"preload": False, "pin": False, **residency}
        return SimpleNamespace(engine=SimpleNamespace(name=engine), residency=SimpleNamespace(**about))

    recipes = [
        recipe("sentence-transformers"), recipe("vllm", preload=True), recipe("vllm", pin=True),
        recipe("faster-whisper", pin=True),
    ]  # fmt: skip

    def engines_of(slots: int, prewarm: bool = True) -> tuple[str, ...]:
        settings: Any = SimpleNamespace(slots=slots, prewarm=prewarm)
        return watcher.engines_at_start(settings, recipes)

    assert engines_of(4) == ("vllm", "faster-whisper")
    assert engines_of(1) == ("vllm",)
    assert engines_of(4, prewarm=False) == ()


async def test_engines_of_absent_models_come_before_those_of_ready_ones() -> None:
    models = [
        model("vllm", S.READY), model("sentence-transformers", S.READY), model("sentence-transformers", S.ABSENT),
        model("faster-whisper", S.FAILED),
    ]  # fmt: skip
    assert await warmed(models, 8 * GIB) == ["sentence-transformers", "faster-whisper", "vllm"]


async def test_nothing_is_prewarmed_for_a_broken_model() -> None:
    assert await warmed([model("vllm", S.ABSENT, broken="no files")], 8 * GIB) == []


async def test_nothing_is_prewarmed_during_a_load() -> None:
    assert await warmed([model("vllm", S.ABSENT), model("faster-whisper", S.LOADING)], 8 * GIB) == []


async def test_only_free_memory_is_used() -> None:
    models = [model("vllm", S.ABSENT), model("faster-whisper", S.ABSENT)]
    assert await warmed(models, 8 * GIB, used_bytes=8 * GIB) == []
    room = prewarmed_bytes("faster-whisper")
    assert await warmed(models, 8 * GIB, used_bytes=8 * GIB - room) == ["faster-whisper"]
    assert await warmed(models, 8 * GIB) == ["vllm", "faster-whisper"]


async def test_with_a_gpu_only_host_memory_counts() -> None:
    models = [model("vllm", S.ABSENT), model("faster-whisper", S.ABSENT)]
    assert await warmed(models, 8 * GIB, used_bytes=80 * GIB, gpu=True) == ["vllm", "faster-whisper"]
    room = prewarmed_bytes("faster-whisper")
    assert await warmed(models, 8 * GIB, on_host=8 * GIB - room, gpu=True) == ["faster-whisper"]
