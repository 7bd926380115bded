"""Engines that sleep on a GPU free memory and then give the same answers. Skipped without a GPU.

The chat engine comes first: it forks, and the others touch CUDA in this process.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from models import nvml
from models.chat.engine import VllmEngine
from models.messages import Chunk, HttpCall, RerankRequest, Segment, TranscribeRequest
from models.protocol import Engine
from models.speech import engine as whisper
from models.text import rerank
from registry.recipes.definition import Recipe
from registry.recipes.loading import load_recipes
from runtime.config import device
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.chat.nasty import TEXT
from tests.system.serving import PACK

pytestmark = [
    pytest.mark.real,
    # with the driver's own library, because a process that has used CUDA cannot be forked
    pytest.mark.skipif(not device._gpus("auto", ()), reason="there is no GPU here"),
]
DEVICE = "cuda:0"


def chat_recipe(base: Path) -> Recipe:
    """Return a recipe with two places for adapters, in 16 bits, as a GPU's kernels for adapters need."""
    return chat_fixtures.recipe(base, device_places=2).model_copy(update={"dtype": "bfloat16"})


async def naps(engine: Engine, ask: Any, least: int) -> None:
    """Sleep and wake three times; check that answers stay the same and at least `least` bytes are freed."""
    before = await ask()
    for _ in range(3):
        awake = nvml.gpu(DEVICE).used
        held = await engine.sleep()
        asleep = nvml.gpu(DEVICE).used
        assert awake - asleep >= least
        assert held.host_bytes > 0
        await engine.ping()
        await engine.wake()
        assert await ask() == before
    await engine.close()


async def test_chat_with_adapters(tmp_path: Path) -> None:
    base = chat_fixtures.write_base(tmp_path / "base")
    adapters = [chat_fixtures.write_adapter(tmp_path / f"adapter-{i}", 200 + i) for i in range(2)]
    engine = VllmEngine()
    loaded = await engine.load(chat_recipe(base), base, DEVICE, lambda progress: None)
    assert loaded.asleep is not None
    assert loaded.asleep.device_bytes < loaded.resident_bytes

    async def ask() -> list[str]:
        found = []
        for adapter in (None, *adapters):
            if adapter is not None:
                await engine.stage(adapter)
                await engine.place(adapter, None)
            served = adapter.digest if adapter else "tiny"
            body = {"model": served, "prompt": "a b c d", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
            call = HttpCall(path=TEXT, body=json.dumps(body).encode(), served=served, display_name="x", adapter=adapter)
            data = b"".join([event.data async for event in engine.call(call) if isinstance(event, Chunk)])
            found.append(str(json.loads(data)["choices"][0]["text"]))
        assert len(set(found)) == 3
        return found

    await naps(engine, ask, 48 << 20)  # most of the KV cache's 64 MiB


async def test_a_reranker_scores_alike_after_a_sleep() -> None:
    engine = rerank.engine()
    (recipe,) = load_recipes([Path("recipes/starter/starter-rerank.yaml")])
    assert (await engine.load(recipe, PACK / "starter-rerank", DEVICE, lambda progress: None)).asleep is not None

    async def ask() -> list[float]:
        request = RerankRequest(query="which brake stops the engine?", documents=["the brake", "a kitten"])
        return [round(logit, 2) for logit in (await engine.model.rerank(request))[0].logits]

    await naps(engine, ask, 1)


async def test_speech_is_transcribed_alike_after_a_sleep() -> None:
    engine = whisper.engine()
    (recipe,) = load_recipes([Path("recipes/starter/starter-speech.yaml")])
    assert (await engine.load(recipe, PACK / "starter-speech", DEVICE, lambda progress: None)).asleep is not None

    async def ask() -> list[str]:
        request = TranscribeRequest(path=str(PACK / "samples" / "kitchen-light.wav"))
        return [part.text async for part in engine.model.transcribe(request) if isinstance(part, Segment)]

    await naps(engine, ask, 1)
