"""The embedding engine on the real library: vectors as from `encode`, exact counts, clear refusals."""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from tqdm import tqdm

from models.batching.engine import BatchedEngine
from models.engines import create
from models.messages import EmbedRequest, EmbedResult
from models.text import embeddings
from models.text.embeddings import EmbeddingModel
from registry.errors import BadRequest, ContextLengthExceeded, EngineFailed
from runtime.http.cohere.bodies import CohereEmbedBody
from runtime.http.embeddings.bodies import EmbeddingsBody
from tests.contract.text.fixtures import Reports, minilm, recipe, text

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
Embedder = BatchedEngine[EmbeddingModel]
TEXTS = ["steam", text(40), "Zug, 列車, поезд: naïve café!", text(200, 3), "a\nb\tc", text(7), text(120, 5), "   x   "]


def matrix(result: EmbedResult) -> npt.NDArray[np.float32]:
    return np.frombuffer(result.vectors, "<f4").reshape(len(result.tokens), result.dimensions)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Embedder]:
    engine = create("sentence-transformers", "embed")
    assert isinstance(engine, BatchedEngine)
    with pytest.raises(EngineFailed, match="new"):
        await engine.model.embed(EmbedRequest(inputs=["x"]))
    reports = Reports()
    flags = {"matryoshka_dimensions": [128, "256"]}
    loaded = await engine.load(recipe("embed", flags), minilm(), "cpu", reports)
    assert (engine.model._dimensions, loaded.context_length) == (384, 256)
    assert 90_000_000 < loaded.weights_bytes < loaded.resident_bytes
    assert [progress.phase for progress in reports.seen] == ["importing", "weights", "warming", "ready"]
    assert set(loaded.seconds) == {"importing", "weights", "warming"}
    with pytest.raises(EngineFailed, match="used before"):
        await engine.load(recipe("embed"), minilm(), "cpu", reports)
    yield engine
    await engine.close()
    await engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        await engine.model.embed(EmbedRequest(inputs=["x"]))
    with pytest.raises(EngineFailed):
        await engine.ping()


@pytest.fixture(scope="module")
def library() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm()), device="cpu", local_files_only=True)


def encoded(library: Any, texts: list[str], **more: Any) -> npt.NDArray[np.float32]:
    return np.stack([library.encode(one, show_progress_bar=False, **more) for one in texts])


async def test_vectors_are_the_librarys_in_the_inputs_order(engine: Embedder, library: Any) -> None:
    result, usage = await engine.model.embed(EmbedRequest(inputs=list(TEXTS)))
    np.testing.assert_allclose(matrix(result), encoded(library, TEXTS), atol=1e-5)
    assert result.tokens == [len(library.tokenizer(one).input_ids) for one in TEXTS]
    assert usage.prompt_tokens == sum(result.tokens)
    assert usage.batch >= 1
    await engine.ping()


async def test_the_engine_makes_no_semaphore_in_shared_memory(engine: Embedder) -> None:
    """A slot is killed at its end and would leave it. The lock of the library's progress bar was one."""
    await engine.model.embed(EmbedRequest(inputs=["x"]))
    assert isinstance(tqdm.get_lock(), type(threading.RLock()))


async def test_concurrent_requests_get_their_own_vectors(engine: Embedder, library: Any) -> None:
    requested = [[text(1 + number % 23, number), text(number % 5 + 1, number)] for number in range(40)]
    answers = await asyncio.gather(*(engine.model.embed(EmbedRequest(inputs=list(texts))) for texts in requested))
    for texts, (result, _) in zip(requested[::8], answers[::8], strict=True):
        np.testing.assert_allclose(matrix(result), encoded(library, texts), atol=1e-5)
    assert max(usage.batch for _, usage in answers) > 2


async def test_token_lists_with_and_without_special_tokens(engine: Embedder, library: Any) -> None:
    whole = library.tokenizer(TEXTS[1]).input_ids
    result, _ = await engine.model.embed(EmbedRequest(inputs=[whole, whole[1:-1], TEXTS[1]]))
    assert result.tokens == [len(whole)] * 3
    np.testing.assert_allclose(matrix(result), encoded(library, [TEXTS[1]] * 3), atol=1e-5)
    for wrong in (30522, -1):
        with pytest.raises(BadRequest, match=rf"Input 1 has token {wrong}.*30521"):
            await engine.model.embed(EmbedRequest(inputs=["x", [5, wrong]]))


async def test_inputs_that_are_too_long_or_empty_are_refused_by_index(engine: Embedder, library: Any) -> None:
    long = text(400)
    count = len(library.tokenizer(long, truncation=False).input_ids)
    with pytest.raises(ContextLengthExceeded, match=f"takes 256 tokens, but input 1 has {count}"):
        await engine.model.embed(EmbedRequest(inputs=["x", long]))
    result, _ = await engine.model.embed(EmbedRequest(inputs=[long], truncate=True))
    assert result.tokens == [256]
    np.testing.assert_allclose(matrix(result), encoded(library, [long]), atol=1e-5)
    for inputs in (["x", ""], ["x", []], []):
        with pytest.raises(BadRequest, match="empty"):
            await engine.model.embed(EmbedRequest(inputs=inputs))


async def test_a_recipe_cuts_where_the_request_does_not_say(library: Any) -> None:
    engine = create("sentence-transformers", "embed")
    assert isinstance(engine, BatchedEngine)
    await engine.load(recipe("embed", truncate=True), minilm(), "cpu", Reports())
    long = text(400)
    result, usage = await engine.model.embed(EmbedRequest(inputs=["x", long, long]))
    np.testing.assert_allclose(matrix(result), encoded(library, ["x", long, long]), atol=1e-5)
    assert (result.tokens, usage.prompt_tokens) == ([3, 256, 256], 515)
    assert result.warning == "inputs were cut to this model's 256 tokens: 2 of 3, first input 1"
    for request in (EmbedRequest(inputs=[long], truncate=True), EmbedRequest(inputs=["x"])):
        assert (await engine.model.embed(request))[0].warning == "", "the client asked for it, or nothing was cut"
    with pytest.raises(ContextLengthExceeded, match="takes 256 tokens, but input 0 has"):
        await engine.model.embed(EmbedRequest(inputs=[long], truncate=False))
    await engine.close()


async def test_dimensions_are_accepted_only_if_the_recipe_has_them(engine: Embedder, library: Any) -> None:
    result, _ = await engine.model.embed(EmbedRequest(inputs=["steam"], dimensions=128))
    cut = encoded(library, ["steam"])[0][:128]
    np.testing.assert_allclose(matrix(result)[0], cut / np.linalg.norm(cut), atol=1e-5)
    raw, _ = await engine.model.embed(EmbedRequest(inputs=["steam"], dimensions=128, normalize=False))
    np.testing.assert_allclose(matrix(raw)[0], cut, atol=1e-5)
    with pytest.raises(BadRequest, match="384 dimensions and may be cut to 128, 256") as refused:
        await engine.model.embed(EmbedRequest(inputs=["steam"], dimensions=100))
    assert refused.value.param == "dimensions"


async def test_a_small_request_overtakes_a_huge_one(engine: Embedder) -> None:
    huge = asyncio.create_task(engine.model.embed(EmbedRequest(inputs=[text(120, number) for number in range(300)])))
    while not len(engine.model.batcher._turns):  # until it is queued
        await asyncio.sleep(0.001)
    for number in range(3):
        await engine.model.embed(EmbedRequest(inputs=[text(3, number)]))
        assert not huge.done()
    huge.cancel()
    with pytest.raises(asyncio.CancelledError):
        await huge
    await engine.ping()
    assert not len(engine.model.batcher._turns)


async def test_prompts_by_name_are_left_out_of_the_mean_if_the_model_says_so(tmp_path: Path) -> None:
    shutil.copytree(minilm(), tmp_path / "model", copy_function=lambda a, b: Path(b).symlink_to(a))
    for name, change in (
        ("config_sentence_transformers.json", {"prompts": {"query": "ask this: "}, "default_prompt_name": None}),
        ("1_Pooling/config.json", {"include_prompt": False}),
    ):
        file = tmp_path / "model" / name
        settings = json.loads(file.read_text()) | change
        file.unlink()
        file.write_text(json.dumps(settings))
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True)
    engine = embeddings.engine()
    await engine.load(recipe("embed"), tmp_path / "model", "cpu", Reports())
    (plain, _), (requested, _) = await asyncio.gather(
        engine.model.embed(EmbedRequest(inputs=["steam", text(9)])),
        engine.model.embed(EmbedRequest(inputs=["steam", text(9)], prompt_name="query")),
    )
    np.testing.assert_allclose(matrix(plain), encoded(library, ["steam", text(9)]), atol=1e-5)
    expected = encoded(library, ["steam", text(9)], prompt_name="query")
    np.testing.assert_allclose(matrix(requested), expected, atol=1e-5)
    with pytest.raises(BadRequest, match=r"no prompt 'passage'.*query"):
        await engine.model.embed(EmbedRequest(inputs=["x"], prompt_name="passage"))
    await engine.close()


async def test_a_model_without_prompts_embeds_inputs_unchanged(engine: Embedder) -> None:
    plain, _ = await engine.model.embed(EmbedRequest(inputs=["steam"]))
    for name in ("query", "document"):
        named, _ = await engine.model.embed(EmbedRequest(inputs=["steam"], prompt_name=name))
        np.testing.assert_allclose(matrix(named), matrix(plain), atol=1e-6)
    with pytest.raises(BadRequest, match="no prompt 'poem'"):
        await engine.model.embed(EmbedRequest(inputs=["steam"], prompt_name="poem"))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"query": "ask: ", "passage": "read: "}, {"document": "read: ", "passage": "read: ", "query": "ask: "}),
        ({"corpus": "read: "}, {"document": "read: ", "passage": "read: ", "query": ""}),
        ({"document": "d: ", "passage": "p: "}, {"document": "d: ", "passage": "p: "}),
        (
            {"search_query": "ask: ", "search_document": "read: "},
            {"document": "read: ", "search_document": "read: ", "query": "ask: ", "search_query": "ask: "},
        ),
        ({}, {"document": "", "passage": "", "query": ""}),
    ],
)
async def test_the_prompt_for_documents_is_found_under_each_of_its_usual_names(
    engine: Embedder,
    monkeypatch: pytest.MonkeyPatch,
    own: dict[str, str],
    expected: dict[str, str],
) -> None:
    monkeypatch.setattr(
        engine.model, "_prompts", {"query": "", "document": "", **own}
    )  # the library adds the two empty ones
    for kind, prompt in expected.items():
        found, _ = await engine.model.embed(EmbeddingsBody(model="m", input="steam", input_type=kind).request())  # type: ignore[arg-type]
        expected_, _ = await engine.model.embed(EmbedRequest(inputs=[prompt + "steam"]))
        assert found.tokens == expected_.tokens
        np.testing.assert_allclose(matrix(found), matrix(expected_), atol=1e-5)


@pytest.mark.parametrize("name", ["clustering", "Clustering"])
async def test_the_prompt_for_a_task_may_have_the_name_of_mtebs_task(
    engine: Embedder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(engine.model, "_prompts", {"query": "ask: ", "document": "", name: "sort: "})
    body = CohereEmbedBody(model="m", texts=["steam"], input_type="clustering")
    found, _ = await engine.model.embed(body.request())
    expected, _ = await engine.model.embed(EmbedRequest(inputs=["sort: steam"]))
    np.testing.assert_allclose(matrix(found), matrix(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"flags": {"threds": 2}}, "'threds' is not known"),
        ({"flags": {"threads": "two"}}, "cannot be 'two'; write a whole number"),
        ({"context_length": 4096}, "has 512 positions"),
        ({"dtype": "int8"}, "no int8"),
        ({"flags": {"matryoshka_dimensions": ["999"]}}, "384 dimensions"),
    ],
)
async def test_a_recipe_that_cannot_work_says_why(more: dict[str, Any], why: str) -> None:
    engine = embeddings.engine()
    with pytest.raises(EngineFailed, match=why):
        await engine.load(recipe("embed", **more), minilm(), "cpu", Reports())
    with pytest.raises(EngineFailed, match="closed"):
        await engine.model.embed(EmbedRequest(inputs=["x"]))


async def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="test-embed could not be loaded"):
        await embeddings.engine().load(recipe("embed"), tmp_path, "cpu", Reports())
