"""Our attention over inputs of any lengths equals PyTorch's, and PyTorch's is used where ours cannot be compiled."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import native
from models.text.bert import Bert
from models.text.cpu import kernels
from models.text.cpu import linear as embed_int16
from models.text.tokens import Ids
from registry.base import processor
from tests.contract.text.test_packed import network, states

pytestmark = pytest.mark.real
missing = kernels.AVX512 - processor.features()
needs_avx512 = pytest.mark.skipif(bool(missing), reason=f"this processor has no {', '.join(sorted(missing))}")


def expected(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: list[int], heads: int) -> Any:
    parts, ends = [], torch.tensor(lengths).cumsum(0).tolist()
    for i, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        rows = slice(end - length, end)
        requested = slice(i, i + 1) if len(query) != len(keys) else rows
        q, k, v = (
            t.view(len(t), heads, -1).transpose(0, 1).double() for t in (query[requested], keys[rows], values[rows])
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / k.shape[-1] ** 0.5, -1)
        parts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@needs_avx512
@settings(max_examples=60)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 40), st.sampled_from([1, 12, 13, 155, 512])), min_size=1, max_size=4),
    heads=st.integers(1, 3),
    size=st.sampled_from([32, 64, 96, 128]),
    single=st.booleans(),
    large=st.sampled_from([0.01, 1.0, 4.0]),
    threads=st.sampled_from([1, 2]),
)
def test_attention_equals_that_in_float64(
    lengths: list[int], heads: int, size: int, single: bool, large: float, threads: int
) -> None:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = torch.randn(sum(lengths), 3 * heads * size, generator=generator) * large
    query, keys, values = rows.chunk(3, 1)
    if single:
        query = query[torch.tensor([0, *lengths[:-1]]).cumsum(0)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = kernels.Attention(heads, size)(query, keys, values, lengths)
    finally:
        torch.set_num_threads(before)
    expected_ = expected(query, keys, values, lengths, heads)
    torch.testing.assert_close(found.double(), expected_, atol=2e-4 * large, rtol=1e-4)
    # an input's result does not depend on the other inputs
    last = lengths[-1]
    alone = kernels.Attention(heads, size)(
        query[-1:] if single else query[-last:], keys[-last:], values[-last:], [last]
    )
    assert torch.equal(alone, found[-len(alone) :])


@needs_avx512
def test_nan_and_infinity_stay_within_their_input() -> None:
    rows = torch.randn(40, 3 * 64)
    attention = kernels.Attention(2, 32)
    clean = attention(*rows.chunk(3, 1), [20, 20])
    for column in (3, 64 + 3, 128 + 3):  # query, key, value
        broken = rows.clone()
        broken[25, column] = float("nan")
        found = attention(*broken.chunk(3, 1), [20, 20])
        assert found[20:].isnan().any()
        assert torch.equal(found[:20], clean[:20])


@needs_avx512
def test_rows_that_do_not_fit_are_refused() -> None:
    attention = kernels.Attention(2, 32)
    query, keys, values = torch.randn(6, 192).chunk(3, 1)
    for q, k, v, lengths in (
        (query[:5], keys, values, [6]),
        (query, keys, values, [5]),
        (query, keys, values, [6, 0]),
        (query, keys, values.contiguous(), [6]),
        (query.double(), keys, values, [6]),
        (query[:, :32], keys[:, :32], values[:, :32], [6]),
        (torch.zeros(513, 64), torch.zeros(513, 64), torch.zeros(513, 64), [513]),
    ):
        with pytest.raises(ValueError, match="no rows to attend"):
            attention(q, k, v, lengths)


def test_other_head_sizes_are_left_to_pytorch() -> None:
    assert kernels.attention_for(12, 48, 512) is None
    assert kernels.attention_for(12, 160, 512) is None
    assert kernels.attention_for(12, 32, 513) is None
    assert (kernels.attention_for(12, 32, 512) is None) == bool(missing)


@needs_avx512
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_a_bert_has_the_same_states_with_it(first_only: bool, rounded: bool) -> None:
    model, rng = network(4, num_attention_heads=1, hidden_size=64), random.Random(4)
    inputs = [Ids([rng.randrange(100) for _ in range(n)]) for n in (5, 1, 17, 17, 64, 2)]
    with torch.inference_mode():
        each = [states(model, given) for given in inputs]
        expected_ = torch.stack([one[0] for one in each]) if first_only else torch.cat(each)
        bert = Bert(model, first_only)
        assert bert._together is not None
        if rounded:
            assert (embed_int16.to_int16(bert) > 0) == ("avx512_vnni" in processor.features())
        found = bert.states(inputs)
    torch.testing.assert_close(
        found, expected_, **({"atol": 0.02, "rtol": 0.02} if rounded else {"atol": 2e-5, "rtol": 1e-4})
    )


@pytest.mark.parametrize("compiler", ["no-such-compiler", shutil.which("false") or "false"])
def test_without_a_compiler_pytorchs_attention_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setattr(processor, "features", lambda: kernels.AVX512)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    assert kernels.load_library.__wrapped__() is None


def test_without_such_a_processor_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "features", lambda: kernels.AVX512 - {"avx512dq"})
    monkeypatch.setattr(native, "build", lambda *_: pytest.fail("compiled"))
    assert kernels.load_library.__wrapped__() is None
