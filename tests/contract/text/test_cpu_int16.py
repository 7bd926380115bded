"""Products in 16 bit integers against float64, and when engines use them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.messages import EmbedRequest, RerankRequest
from models.starter import __file__ as starter
from models.text import embeddings, rerank
from models.text.bert import Bert, Linear
from models.text.cpu import kernels
from models.text.cpu import linear as embed_int16
from registry.base import processor
from registry.errors import EngineFailed
from tests.contract.text.fixtures import Reports, minilm, recipe, text
from tests.contract.text.test_packed import network

pytestmark = pytest.mark.real
RERANKER = Path(starter).parent / "pack" / "starter-rerank"
missing = kernels.VNNI - processor.features()
needs_vnni = pytest.mark.skipif(bool(missing), reason=f"this processor has no {', '.join(sorted(missing))}")


@pytest.fixture(scope="module")
def library() -> Any:
    found = kernels.load_int16()
    assert found is not None, "this machine has no C compiler, which `make` needs too"
    return found


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_vnni
@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    inputs=st.one_of(st.integers(1, 70), st.sampled_from([192, 193, 384, 400, 1536])),
    outputs=st.integers(1, 100),
    seed=st.integers(0, 1000),
    threads=st.sampled_from([1, 2]),
)
def test_products_equal_those_in_float64_up_to_rounding(
    rows: int, inputs: int, outputs: int, seed: int, threads: int
) -> None:
    x, weight, bias = some(rows, inputs, seed=seed), some(inputs, outputs, seed=seed + 1), some(outputs, seed=seed + 2)
    linear = kernels.Int16Linear(kernels.load_int16(), weight, bias)  # type: ignore[arg-type]
    # Each value is wrong by at most half a step, which is the largest value of its block over the largest integer.
    most_row, most_weight = kernels.largest(linear.block)
    off = (
        x.abs().max() / most_row / 2 * weight.abs().sum(0)
        + weight.abs().max() / most_weight / 2 * x.abs().sum(1)[:, None]
    )
    bound = 1.01 * off.double() + 1e-4
    exact = x.double() @ weight.double() + bias.double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = linear.rows(x)
        assert ((found - exact).abs() <= bound).all()
        to = some(rows, outputs, seed=3)
        assert ((linear.add(x, to.clone()) - to - exact).abs() <= bound).all()
        active = torch.nn.functional.gelu(found.double())
        torch.testing.assert_close(linear.gelu(x).double(), active, atol=2e-6, rtol=1e-5)
        # a row's result does not depend on the other rows or on their layout
        wide = some(rows, inputs + 3, seed=9)
        wide[:, 2 : 2 + inputs] = x
        assert torch.equal(linear.rows(wide[:, 2 : 2 + inputs]), found)
        assert torch.equal(linear.rows(x[-1:]), found[-1:])
    finally:
        torch.set_num_threads(before)


@needs_vnni
@pytest.mark.parametrize("inputs", [32, 192, 384, 1536, 3072])
def test_sums_never_overflow(library: Any, inputs: int) -> None:
    """The largest possible sums, of the largest values with equal signs."""
    for sign in (1.0, -1.0):
        x, weight = torch.full((3, inputs), 7.0), torch.full((inputs, 33), sign * 0.5)
        found = kernels.Int16Linear(library, weight, torch.zeros(33)).rows(x)
        torch.testing.assert_close(found, torch.full((3, 33), sign * 3.5 * inputs), rtol=1e-5, atol=0)
    for block in range(32, kernels.BLOCK + 1, 32):
        most_row, most_weight = kernels.largest(block)
        assert block * most_row * most_weight < 2**31
        assert max(most_row, most_weight) < 2**15


@needs_vnni
def test_nan_and_infinity_stay_within_their_row(library: Any) -> None:
    linear = kernels.Int16Linear(library, some(400, 40), torch.zeros(40))
    x = some(5, 400, seed=1)
    clean = linear.rows(x)
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = x.clone()
        broken[2, 300] = bad
        found = linear.rows(broken)
        assert found[2].isnan().all()
        assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    assert torch.equal(linear.rows(torch.zeros(2, 400)), torch.zeros(2, 40))
    tiny = linear.rows(x * 1e-35)  # smaller than the divisor's floor
    assert tiny.abs().max() <= 1e-30


@needs_vnni
def test_rows_that_do_not_fit_are_refused(library: Any) -> None:
    linear = kernels.Int16Linear(library, some(6, 4), torch.zeros(4))
    for x, y in (
        (some(3, 5), some(3, 4)),
        (some(3, 6), some(2, 4)),
        (some(3, 6).double(), some(3, 4)),
        (some(6, 3).t(), some(3, 4)),
        (some(3, 6), some(4, 3).t()),
    ):
        with pytest.raises(ValueError, match="no rows of this layer"):
            linear.add(x, y)


@needs_vnni
@pytest.mark.parametrize("first_only", [False, True])
def test_a_bert_in_integers_has_the_same_states_and_its_weights_only_once(first_only: bool) -> None:
    model = network(1)
    bert = Bert(model, first_only)
    inputs = embed_int16.probes(100, 64)
    with torch.inference_mode():
        exact = bert.states(inputs)
        before = sum(p.numel() * 4 for p in model.encoder.parameters())
        held = embed_int16.to_int16(bert)
        found = bert.states(inputs)
    assert not torch.equal(found, exact), "the products are no longer in float32"
    assert torch.nn.functional.cosine_similarity(found, exact).min() > embed_int16.LEAST
    assert held > 0
    assert sum(p.numel() * 4 for p in model.encoder.parameters()) < before / 5


@needs_vnni
def test_a_model_whose_states_would_change_stays_in_float32(
    library: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bert = Bert(network(2), False)
    inputs = embed_int16.probes(100, 64)
    with torch.inference_mode():
        exact = bert.states(inputs)
        monkeypatch.setattr(kernels, "largest", lambda block: (5, 5))  # three bits
        assert embed_int16.to_int16(bert) == 0
        assert torch.equal(bert.states(inputs), exact)
    assert isinstance(bert.layers[0].up, Linear)


async def vectors(dtype: str, flags: dict[str, Any]) -> tuple[Any, Any, int]:
    """Return vectors of some texts, the class of the engine's products, and its bytes of weights."""
    engine = embeddings.engine()
    loaded = await engine.load(recipe("embed", flags).model_copy(update={"dtype": dtype}), minilm(), "cpu", Reports())
    try:
        bert = engine.model.encoder.bert
        request = EmbedRequest(inputs=[text(n, n) for n in (1, 3, 30, 120, 3)])
        result, _ = await engine.model.embed(request)
        found = np.frombuffer(result.vectors, "<f4").reshape(5, -1)
        return found, bert and type(bert.layers[0].up), loaded.weights_bytes
    finally:
        await engine.close()


@needs_vnni
async def test_embeddings_in_integers_equal_those_in_float32() -> None:
    exact, kind, size = await vectors("float32", {})
    assert kind is Linear
    found, kind, smaller = await vectors("auto", {})
    assert kind is kernels.Int16Linear
    assert smaller < size - 2**24
    assert (found * exact).sum(1).min() > 0.99999
    assert np.abs(found - exact).max() < 1e-3
    for dtype, flags, expected in (
        ("auto", {"compute_type": "float32"}, Linear),
        ("float32", {"compute_type": "int16"}, kernels.Int16Linear),
        ("auto", {"packed": False}, None),
    ):
        _, kind, _ = await vectors(dtype, flags)
        assert kind is expected


@needs_vnni
async def test_scores_in_integers_equal_those_in_float32() -> None:
    logits = []
    for flags in ({"compute_type": "float32"}, {"compute_type": "int16"}):
        engine = rerank.engine()
        await engine.load(recipe("rerank", flags), RERANKER, "cpu", Reports())
        documents = [text(n, n) for n in (1, 3, 30, 120, 3)]
        logits.append((await engine.model.rerank(RerankRequest(query=text(4), documents=documents)))[0].logits)
        await engine.close()
    assert logits[0] != logits[1]
    np.testing.assert_allclose(logits[1], logits[0], atol=0.02)


async def test_an_unavailable_compute_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineFailed, match="compute_type is one of auto, float32, int16, not 'int8'"):
        await vectors("auto", {"compute_type": "int8"})
    monkeypatch.setattr(kernels, "load_int16", lambda: None)
    with pytest.raises(EngineFailed, match="compute_type int16 needs a processor"):
        await vectors("auto", {"compute_type": "int16"})
    assert (await vectors("auto", {}))[1] is Linear


def test_a_thread_reuses_its_memory_for_rounded_rows() -> None:
    first = kernels._scratch(1000, 10)
    assert kernels._scratch(1000, 10) == first
    assert kernels._scratch(10, 1) == first, "fewer rows fit, too"
    kernels._scratch(1 << 20, 10)
    assert kernels._scratch(1000, 10) == kernels._scratch(1 << 20, 10)
