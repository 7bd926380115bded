"""The rerank engine on the real library: scores as from `predict`, and long documents in chunks."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from models.batching.engine import BatchedEngine
from models.engines import create
from models.messages import RerankRequest
from models.text import rerank
from models.text.loading import open_model
from models.text.pairs import OVERLAP, chunks, longest_first
from models.text.rerank import PROBE, RerankingModel
from models.text.tokens import Ids
from registry.errors import BadRequest, ContextLengthExceeded, EngineFailed
from tests.contract.text.fixtures import Reports, minilm, recipe, text

Reranker = BatchedEngine[RerankingModel]
CONTEXT = 128
real = [pytest.mark.real]
QUERY = "which brake stops the engine?"


def build(folder: Path, labels: int = 1) -> Path:
    """Write a small cross-encoder with random weights and MiniLM's tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=30522, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=CONTEXT, num_labels=labels, initializer_range=0.2,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(minilm(), local_files_only=True)
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cross") / "model")


@pytest.fixture(scope="module")
def library(model: Path) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(model), device="cpu", local_files_only=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[Reranker]:
    engine = create("sentence-transformers", "rerank")
    assert isinstance(engine, BatchedEngine)
    loaded = await engine.load(recipe("rerank"), model, "cpu", Reports())
    assert loaded.context_length == CONTEXT
    yield engine
    await engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        await engine.model.rerank(RerankRequest(query="q", documents=["d"]))


def predicted(library: Any, query: str, documents: list[str]) -> list[float]:
    import torch

    pairs = [(query, document) for document in documents]
    return [float(library.predict(p, activation_fn=torch.nn.Identity(), show_progress_bar=False)) for p in pairs]


@pytest.mark.real
def test_a_loaded_model_keeps_its_weights_when_its_files_are_overwritten(model: Path, tmp_path: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    folder = shutil.copytree(model, tmp_path / "model")
    opened = open_model(recipe("rerank"), folder, "cpu", CrossEncoder)
    before = [weights.clone() for weights in opened.parameters()]
    with (folder / "model.safetensors").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
    assert all(map(torch.equal, before, opened.parameters()))


class TestEngine:
    pytestmark: ClassVar[list[pytest.MarkDecorator]] = [*real, pytest.mark.asyncio(loop_scope="module")]

    async def test_logits_are_the_librarys_own(self, engine: Reranker, library: Any) -> None:
        documents = [text(count, count) for count in (3, 60, 1, 25, 90, 12)] + ["", "列車 naïve"]
        result, usage = await engine.model.rerank(RerankRequest(query=QUERY, documents=documents))
        assert result.logits == pytest.approx(predicted(library, QUERY, documents), abs=1e-4)
        assert result.chunks == [1] * len(documents)
        assert result.tokens == [len(ids) for ids in library.tokenizer([(QUERY, one) for one in documents]).input_ids]
        assert usage.prompt_tokens == sum(result.tokens)
        await engine.ping()

    async def test_long_documents_count_by_their_best_chunk(self, engine: Reranker, library: Any) -> None:
        long = text(700, 2)
        result, _ = await engine.model.rerank(RerankRequest(query=QUERY, documents=["short", long]))
        ids = library.tokenizer(long, add_special_tokens=False).input_ids
        room = CONTEXT - 3 - len(library.tokenizer(QUERY, add_special_tokens=False).input_ids)
        parts = [library.tokenizer.decode(part) for part in chunks(ids, room)]
        expected = max(predicted(library, QUERY, parts))
        assert result.chunks == [1, len(parts)]
        assert len(parts) > 5
        assert result.logits[1] == pytest.approx(expected, abs=1e-4)

    async def test_truncation_is_the_librarys_own(self, engine: Reranker, library: Any) -> None:
        for query, document in ((QUERY, text(500)), (text(90), text(300)), (text(300), "x"), (text(61), text(62))):
            result, _ = await engine.model.rerank(RerankRequest(query=query, documents=[document], truncate=True))
            assert result.chunks == [1]
            assert result.logits == pytest.approx(predicted(library, query, [document]), abs=1e-4)

    async def test_limits_of_tokens_cut_query_and_documents(self, engine: Reranker, library: Any) -> None:
        document, query = text(300, 3), text(40, 4)

        def first(whole: str, count: int) -> str:
            return str(library.tokenizer.decode(library.tokenizer(whole, add_special_tokens=False).input_ids[:count]))

        for tokens in (1, 20, 70):
            limited = RerankRequest(query=QUERY, documents=[document, "short"], max_document_tokens=tokens)
            result, _ = await engine.model.rerank(limited)
            expected = predicted(library, QUERY, [first(document, tokens), first("short", tokens)])
            assert result.logits == pytest.approx(expected, abs=1e-4)
            assert result.chunks == [1, 1]
        result, _ = await engine.model.rerank(RerankRequest(query=query, documents=["short"], max_query_tokens=8))
        assert result.logits == pytest.approx(predicted(library, first(query, 8), ["short"]), abs=1e-4)

    async def test_a_limit_of_chunks_scores_the_start(self, engine: Reranker, library: Any) -> None:
        long = text(700, 2)
        ids = library.tokenizer(long, add_special_tokens=False).input_ids
        room = CONTEXT - 3 - len(library.tokenizer(QUERY, add_special_tokens=False).input_ids)
        every, _ = await engine.model.rerank(RerankRequest(query=QUERY, documents=[long]))
        for most in (1, 3, every.chunks[0], every.chunks[0] + 5):
            request = RerankRequest(query=QUERY, documents=["short", long], max_chunks=most)
            result, _ = await engine.model.rerank(request)
            parts = [library.tokenizer.decode(part) for part in chunks(ids, room, most)]
            assert result.chunks == [1, min(most, every.chunks[0])]
            assert result.logits[1] == pytest.approx(max(predicted(library, QUERY, parts)), abs=1e-4)
        assert result.logits[1] == pytest.approx(every.logits[0], abs=1e-4)

    async def test_requests_share_batches_and_keep_their_answers(self, engine: Reranker, library: Any) -> None:
        requested = [[text(2 + number, number), text(9, number)] for number in range(12)]
        requests = [RerankRequest(query=f"query {n}", documents=documents) for n, documents in enumerate(requested)]
        expected = {number: predicted(library, f"query {number}", requested[number]) for number in (0, 5, 11)}
        for _ in range(1000):  # until some requests arrive during a step, which is rare on a busy machine
            answers = await asyncio.gather(*(engine.model.rerank(request) for request in requests))
            for number in expected:
                assert answers[number][0].logits == pytest.approx(expected[number], abs=1e-4)
            if max(usage.batch for _, usage in answers) > 2:
                return
        raise AssertionError("no batch was shared")

    async def test_long_queries_and_empty_pairs_are_refused(self, engine: Reranker) -> None:
        with pytest.raises(ContextLengthExceeded, match=r"query has .* tokens") as refused:
            await engine.model.rerank(RerankRequest(query=text(300), documents=["d"]))
        assert refused.value.param == "query"
        for query, documents in (("", ["d"]), ("q", [])):
            with pytest.raises(BadRequest, match="empty"):
                await engine.model.rerank(RerankRequest(query=query, documents=documents))

    async def test_a_lost_device_fails_the_heartbeat(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost(*_: object) -> NoReturn:
            raise RuntimeError("an illegal memory access was encountered")

        monkeypatch.setattr("models.text.engine.examination", lambda device: lost)
        engine = rerank.engine()
        await engine.load(recipe("rerank"), model, "cpu", Reports())
        engine.model.batcher.run = lost
        await engine.ping()
        with pytest.raises(EngineFailed, match="illegal memory access"):
            await engine.model.rerank(RerankRequest(query="q", documents=["d"]))
        with pytest.raises(EngineFailed, match="rerank is broken: RuntimeError: an illegal memory access"):
            await engine.ping()
        await engine.close()

    async def test_a_classifier_is_no_reranker(self, tmp_path: Path) -> None:
        with pytest.raises(EngineFailed, match="gives 3 scores"):
            await rerank.engine().load(recipe("rerank"), build(tmp_path, labels=3), "cpu", Reports())


@pytest.mark.parametrize(
    ("expected", "found", "single", "same"),
    [
        (11.25, 11.25 - 3 * 2**-4, False, True),  # three steps of bfloat16
        (-24.0, -24.0 + 2 * 2**-3, False, True),
        (0.3, 0.22, False, True),
        (11.25, 10.5, False, False),
        (0.3, 0.1, False, False),
        (11.25, 11.2495, True, True),
        (11.25, 11.2, True, False),
        (11.25, float("nan"), False, False),
    ],
)
async def test_a_logit_may_differ_by_a_few_steps_of_its_type(
    monkeypatch: pytest.MonkeyPatch, expected: float, found: float, single: bool, same: bool
) -> None:
    async def score(_: RerankRequest) -> tuple[list[float], list[list[Ids]], int]:
        return [found], [], 1

    model = object.__new__(RerankingModel)  # without a network
    model._expected = [expected] * len(PROBE)
    monkeypatch.setattr(model, "_score", score)
    with contextlib.nullcontext() if same else pytest.raises(EngineFailed, match="does not score"):
        await model.check(single=single)


@given(st.integers(0, 3000), st.integers(16, 500))
def test_chunks_cover_the_document_evenly(length: int, room: int) -> None:
    document = list(range(length))
    parts = chunks(document, room)
    assert all(len(part) <= room for part in parts)
    assert sorted({token for part in parts for token in part}) == document
    for before, after in pairwise(parts):
        assert before[-1] - after[0] + 1 >= room // OVERLAP


@given(st.integers(0, 3000), st.integers(16, 500), st.integers(1, 9))
def test_a_limited_number_of_chunks_covers_the_start(length: int, room: int, most: int) -> None:
    document = list(range(length))
    parts = chunks(document, room, most)
    assert len(parts) == min(most, len(chunks(document, room)))
    covered = sorted({token for part in parts for token in part})
    assert covered == document[: len(covered)]
    assert len(covered) == length or sum(map(len, parts)) == most * room  # all of it, or all chunks are full


@given(st.integers(0, 300), st.integers(0, 300), st.integers(4, 200))
def test_longest_first_fills_the_room(first: int, second: int, room: int) -> None:
    a, b = longest_first(range(first), range(second), room)
    assert len(a) + len(b) == min(room, first + second)
    assert len(a) <= first
    assert len(b) <= second
