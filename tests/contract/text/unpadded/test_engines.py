"""Both engines without padding, on a CPU as on a GPU, have the library's results, whatever shares a step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.messages import EmbedRequest, RerankRequest
from models.text import embeddings, loading, rerank
from models.text.encoder import Encoder
from models.text.heads import PoolingHead, Row
from models.text.tokens import Ids, Tokens
from models.text.unpadded import network
from models.text.unpadded.buckets import MOST_BYTES, USES
from tests.contract.text.fixtures import Reports, minilm, recipe, text
from tests.contract.text.test_rerank import QUERY, build
from tests.contract.text.unpadded.networks import CONFIGS, PADDING, SameFunction, network_of

pytestmark = pytest.mark.real
TEXTS = ["steam", text(20), "Zug, 列車: naïve café!", text(50, 3), "a b", text(7)]
MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave padding out on a CPU, too, if the recipe says so."""
    for module in (embeddings, rerank):
        monkeypatch.setattr(module, "leaves_padding", lambda recipe, _: loading.leaves_padding(recipe, "cuda:0"))
        monkeypatch.setattr(module, "packs", lambda _: False)


def embedder(mode: Any, *, include_prompt: bool = True) -> Encoder[Row]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    model = SentenceTransformer(str(minilm()), device="cpu", local_files_only=True)
    pooling = Pooling(384, mode, include_prompt=include_prompt)
    whole = SentenceTransformer(modules=[model[0], pooling, Normalize()], device="cpu").eval()
    tokens = Tokens(whole.tokenizer, loading.vocabulary_of(whole), 256)
    return Encoder(whole, tokens, "cpu", PoolingHead(whole), None)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_each_pooling_has_the_same_vectors_as_with_padding(include_prompt: bool) -> None:
    """All inputs are in one step. The prompt has two tokens for some of them and none for others."""
    given = embedder(MODES, include_prompt=include_prompt)
    plain = given.tokens.inputs(TEXTS, "", truncate=True)
    inputs = [Ids(one.ids, None, 2 * (number % 2)) for number, one in enumerate(plain)]
    expected = np.stack(given.run(inputs))
    assert expected.shape == (len(TEXTS), 384 * len(MODES))
    given.leave_padding([Ids(one.ids) for one in inputs], lambda *both: embeddings._is_unchanged(*both, single=True))
    assert given.packed
    np.testing.assert_allclose(np.stack(given.run(inputs)), expected, atol=1e-5)


def test_unknown_modules_keep_the_padding(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.text")
    given = embedder("mean")
    given.model.append(type("Own", (type(given.model[2]),), {})())
    given.leave_padding([Ids([101, 102])], lambda *_: True)
    assert not given.packed
    assert "its modules are unknown" in caplog.text


@pytest.mark.usefixtures("as_on_a_gpu")
async def test_vectors_equal_those_with_padding() -> None:
    vectors = []
    for flags in ({"packed": False}, {"unpadded": True}):
        engine = embeddings.engine()
        await engine.load(recipe("embed", flags), minilm(), "cpu", Reports())
        assert (engine.model.encoder.unpadded is not None) is ("unpadded" in flags)
        assert engine.model.batcher.limits.padded is ("unpadded" not in flags)
        result, _ = await engine.model.embed(EmbedRequest(inputs=TEXTS, truncate=True))
        vectors.append(np.frombuffer(result.vectors, "<f4"))
        await engine.close()
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-5)


def bge_reranker(folder: Path) -> Path:
    """Write a small, random XLM-RoBERTa with a score, like BAAI/bge-reranker-v2-m3, with MiniLM's tokenizer."""
    from transformers import AutoTokenizer

    config = CONFIGS["xlm-roberta"](vocab_size=30522, num_labels=1, max_position_embeddings=130, type_vocab_size=2)
    network_of("AutoModelForSequenceClassification", config).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(minilm(), local_files_only=True)
    tokenizer.model_max_length = 128
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(PADDING)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("make", [build, bge_reranker])
async def test_scores_equal_those_with_padding(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    scores = []
    for flags in ({}, {"unpadded": True}):
        engine = rerank.engine()
        await engine.load(recipe("rerank", flags), model, "cpu", Reports())
        assert engine.model.batcher.limits.padded is ("unpadded" not in flags)
        documents = [text(count, count) for count in (3, 60, 1, 25, 90, 12)]
        result, _ = await engine.model.rerank(RerankRequest(query=QUERY, documents=documents))
        scores.append(result.logits)
        await engine.close()
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)


@pytest.mark.parametrize(
    ("device", "flags", "leaves"),
    [
        ("cuda:0", {"unpadded": True}, True),
        ("cuda:0", {}, False),
        ("cpu", {"unpadded": True}, False),
        ("cuda:0", {"unpadded": True, "packed": False}, False),
        ("cuda:0", {"unpadded": True, "attn_implementation": "eager"}, False),
    ],
)
@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_padding_is_left_out_only_on_a_gpu_and_if_the_recipe_says_so(
    task: str, device: str, flags: dict[str, Any], leaves: bool
) -> None:
    assert loading.leaves_padding(recipe(task, flags), device) is leaves


async def test_on_a_cpu_the_flag_changes_nothing() -> None:
    engine = embeddings.engine()
    await engine.load(recipe("embed", {"unpadded": True, "packed": False}), minilm(), "cpu", Reports())
    assert not engine.model.encoder.packed
    await engine.close()


@pytest.mark.usefixtures("as_on_a_gpu")
async def test_graphs_are_dropped_before_weights_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "CudaCapture", lambda _: SameFunction())
    engine = embeddings.engine()
    flags = {"unpadded": True, "cuda_graphs": True}
    loaded = await engine.load(recipe("embed", flags), minilm(), "cpu", Reports())
    unpadded = engine.model.encoder.unpadded
    assert unpadded is not None
    assert unpadded.captured is not None
    assert loaded.resident_bytes > MOST_BYTES, "memory for graphs counts from the start"
    vectors = set()
    for _ in range(2):
        for _ in range(USES + 1):
            vectors.add((await engine.model.embed(EmbedRequest(inputs=["steam"])))[0].vectors)
        assert len(unpadded.captured) > 0
        await engine.sleep()
        assert len(unpadded.captured) == 0
        await engine.wake()
    first, *others = (np.frombuffer(one, "<f4") for one in vectors)
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-5)
    await engine.close()
