"""The compiled LoRA kernel against plain matrix products in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters import cpu_batch, cpu_kernel, vllm_punica
from registry import native

pytestmark = pytest.mark.real
PLACES = 5
DTYPES = list(cpu_kernel.KINDS)


@pytest.fixture(scope="module")
def kernel() -> Any:
    found = cpu_kernel.load()
    assert found is not None, "this machine has no C compiler: `make` needs one too"
    return found


def case(seed: int, kinds: tuple[torch.dtype, torch.dtype], rank: int, inputs: int, widths: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    a = tuple(some(kinds[1], PLACES, 1, rank, inputs) for _ in widths)
    b = tuple(cpu_kernel.turned(some(kinds[1], PLACES, 1, width, rank)) for width in widths)
    return a, b, lambda rows: (some(kinds[0], rows, sum(widths)), some(kinds[0], rows, inputs))


def elsewhere(a: Any, b: Any, place: int, ranks: list[int]) -> list[cpu_kernel.Pair | None]:
    """The place's weights in memory of their own, each slice up to a rank of its own. In the place itself, zeros take
    the room of what is left out, for `wanted` to see."""
    pairs: list[cpu_kernel.Pair | None] = []
    for a_, b_, rank in zip(a, b, ranks, strict=True):
        a_[place, 0, rank:], b_[place, 0, :, rank:] = 0, 0
        pair = a_[place, 0, :rank].clone(), cpu_kernel.turned(b_[place, 0, :, :rank])
        pairs.append(pair if rank else None)
    return pairs


def scattered(a: Any, b: Any, widths: tuple[int, ...], data: st.DataObject) -> tuple[cpu_kernel.Layer, dict[int, int]]:
    """A layer, some of whose places have their weights elsewhere, and the rank of each place; beyond it lies NaN."""
    ranks = {place: data.draw(st.integers(1, a[0].shape[2])) for place in range(PLACES)}
    for place, r in ranks.items():
        for half in (*a, *(b_.transpose(-1, -2) for b_ in b)):
            half[place, 0, r:] = float("nan")
    layer = cpu_kernel.Layer(a, b, widths)
    for place in data.draw(st.sets(st.integers(0, PLACES - 1))):
        layer.put(place, elsewhere(a, b, place, [data.draw(st.integers(0, ranks[place])) for _ in widths]))
    return layer, ranks


def poison(layer: cpu_kernel.Layer, a: Any, b: Any) -> None:
    """What lies in the memory of places whose weights are elsewhere must not be read."""
    for place in layer._put:
        for half in (*a, *b):
            half[place] = float("nan")


def wanted(y: torch.Tensor, x: torch.Tensor, a: Any, b: Any, places: list[int], ranks: dict[int, int]) -> torch.Tensor:
    y = y.double()
    for row, place in enumerate(places):
        if place >= 0:
            r = ranks[place]
            parts = [
                b_[place, 0, :, :r].double() @ (a_[place, 0, :r].double() @ x[row].double())
                for a_, b_ in zip(a, b, strict=True)
            ]
            y[row] += torch.cat(parts)
    return y


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    kinds=st.sampled_from(DTYPES),
    rank=st.sampled_from([1, 3, 8, 16, 24]),
    inputs=st.sampled_from([1, 7, 64, 129]),
    widths=st.sampled_from([(5,), (64, 64), (33, 8, 8), (300,)]),
    places=st.lists(st.integers(-1, PLACES - 1), min_size=1, max_size=16),
    most=st.sampled_from([0, 8, 30, 999]),
    data=st.data(),
)
def test_each_row_gets_its_own_adapter(
    kernel: Any, seed: int, kinds: tuple[torch.dtype, torch.dtype], rank: int, inputs: int, widths: tuple[int, ...],
    places: list[int], most: int, data: st.DataObject,
) -> None:  # fmt: skip
    """By the kernel, by matrix products, and by both in one batch; values beyond an adapter's own rank are not read,
    nor what is in the memory of a place whose weights were put elsewhere, for some slices of a lower rank, or none."""
    a, b, rows = case(seed, kinds, rank, inputs, widths)
    y, x = rows(len(places))
    layer, ranks = scattered(a, b, widths, data)
    expected = wanted(y, x, a, b, places, ranks)
    poison(layer, a, b)
    batch = cpu_batch.Batch(torch.tensor(places), ranks, rank)
    single, _, groups = batch.split(most)
    if single is not None:
        assert cpu_kernel.add(kernel, y, x, layer, single, 1.0)
    vllm_punica.add_lora(y, x, layer, groups, 1.0)
    untouched = [row for row, place in enumerate(places) if place < 0]
    torch.testing.assert_close(y[untouched].double(), expected[untouched], rtol=0, atol=0)
    size = float(expected.abs().max()) + 1
    exact = kinds == (torch.float32, torch.float32)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=size * (1e-5 if exact else 2e-2))


def test_every_row_is_in_one_of_the_two_forms() -> None:
    batch = cpu_batch.Batch(torch.tensor([2, -1, 0, 2, 2, 1]), {0: 4}, 8)
    rows, tiled, groups = batch.split(8)
    assert rows is not None
    assert tiled is None
    assert [rows.row.tolist(), rows.place.tolist(), rows.rank.tolist()] == [[2, 5], [0, 1], [4, 8]]
    assert [(place, found.tolist(), rank) for place, found, rank in groups if found is not None] == [(2, [0, 3, 4], 8)]
    assert not cpu_batch.Batch(torch.tensor([-1, -1]), {}, 8).any
    assert cpu_batch.Batch(torch.tensor([1, 1]), {}, 8).split(0) == (None, None, [(1, None, 8)])
    few, many, groups = cpu_batch.Batch(torch.tensor([2, 1, 0, 2, 2, 1]), {0: 4}, 8).split(4, 16)
    assert few is not None
    assert many is not None
    assert [few.row.tolist(), many.row.tolist(), many.rank.tolist()] == [[2], [1, 5], [8, 8]]
    assert [place for place, *_ in groups] == [2]


def test_scale_and_rows_of_a_wider_tensor(kernel: Any) -> None:
    a, b, rows = case(1, (torch.float32, torch.float32), 4, 6, (3, 2))
    y, x = rows(2)
    wide_y, wide_x = torch.zeros(2, 9), torch.zeros(2, 11)
    wide_y[:, :5], wide_x[:, :6] = y, x
    single, *_ = cpu_batch.Batch(torch.tensor([3, 0]), {}, 4).split(4)
    assert single is not None
    assert cpu_kernel.add(kernel, wide_y, wide_x[:, :6], cpu_kernel.Layer(a, b, (3, 2)), single, 0.5)
    expected = y.double() + 0.5 * (wanted(y, x, a, b, [3, 0], {3: 4, 0: 4}) - y.double())
    torch.testing.assert_close(wide_y[:, :5].double(), expected, rtol=1e-5, atol=1e-5)
    assert bool((wide_y[:, 5:] == 0).all())


@pytest.mark.parametrize("kinds", DTYPES)
def test_a_call_done_again_takes_the_weights_that_are_there_now(
    kernel: Any, kinds: tuple[torch.dtype, torch.dtype]
) -> None:
    a, b, rows = case(5, kinds, 4, 6, (3, 2))
    layer = cpu_kernel.Layer(a, b, (3, 2))
    few, *_ = cpu_batch.Batch(torch.tensor([3, 0]), {}, 4).split(4)
    assert few is not None
    call = cpu_kernel.Call(kernel, *rows(2), layer, few)
    for place in (None, 3, 0):
        if place is not None:
            layer.put(place, elsewhere(a, b, place, [2, 4]))
        y, x = rows(2)
        again = y.clone()
        assert cpu_kernel.add(kernel, y, x, layer, few, 0.5)
        assert call(again, x, 0.5)
        assert torch.equal(again, y)
    before = y.clone()
    for output, inputs in (
        (y[:1], x[:1]),  # other rows
        (y, torch.ones(2, 7, dtype=x.dtype)[:, :6]),  # that lie elsewhere
        (torch.ones(2, 7, dtype=y.dtype)[:, :5], x),
        (y.double(), x),
        (y, x.double()),
        (y[None], x[None]),
    ):
        assert not call(output, inputs, 1.0)
    assert torch.equal(y, before)


@pytest.mark.skipif("amx_bf16" not in native.features(), reason="a processor without tiles")
def test_there_are_tiles_where_the_processor_has_them() -> None:
    assert cpu_kernel.tiles()


@pytest.mark.skipif(not cpu_kernel.tiles(), reason="no tiles")
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    rank=st.sampled_from([1, 8, 16, 21, 32, 48, 100]),
    inputs=st.sampled_from([32, 96, 1024, 1056]),
    widths=st.sampled_from([(32,), (64, 32, 32), (288,)]),
    counts=st.lists(st.integers(0, 70), min_size=PLACES, max_size=PLACES),
    data=st.data(),
)
def test_many_rows_in_tiles(
    kernel: Any, seed: int, rank: int, inputs: int, widths: tuple[int, ...], counts: list[int], data: st.DataObject
) -> None:
    """As matrix products would have it, whatever the rank of an adapter and of a slice; what is beyond it is not read.
    PyTorch's own products, which use tiles as well, are what they were."""
    a, b, rows = case(seed, (torch.bfloat16, torch.bfloat16), rank, inputs, widths)
    places = [place for place, count in enumerate(counts) for _ in range(count)] + [-1]
    data.draw(st.randoms(use_true_random=False)).shuffle(places)
    y, x = rows(len(places))
    x *= inputs**-0.5
    layer, ranks = scattered(a, b, widths, data)
    expected = wanted(y, x, a, b, places, ranks)
    poison(layer, a, b)
    before, product = y.clone(), x @ x.t()
    _, many, _ = cpu_batch.Batch(torch.tensor(places), ranks, rank).split(0, 1 << 30)
    if many is not None:
        assert cpu_kernel.add_tiled(kernel, y, x, layer, many, 1.0)
    without = [row for row, place in enumerate(places) if place < 0]
    assert torch.equal(y[without], before[without])
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=(float(expected.abs().max()) + 1) * 1e-2)
    assert torch.equal(x @ x.t(), product)


@pytest.mark.skipif(not cpu_kernel.tiles(), reason="no tiles")
@pytest.mark.parametrize("kinds", DTYPES)
@pytest.mark.parametrize(("inputs", "width"), [(32, 33), (40, 32), (64, 64)])
def test_only_what_fits_goes_into_tiles(
    kernel: Any, kinds: tuple[torch.dtype, torch.dtype], inputs: int, width: int
) -> None:
    a, b, rows = case(4, kinds, 4, inputs, (width,))
    layer = cpu_kernel.Layer(a, b, (width,))
    y, x = rows(6)
    before = y.clone()
    _, many, _ = cpu_batch.Batch(torch.tensor([0] * 6), {}, 4).split(0, 99)
    assert many is not None
    fits = (inputs, width, *kinds) == (64, 64, torch.bfloat16, torch.bfloat16)
    assert cpu_kernel.add_tiled(kernel, y, x, layer, many, 1.0) is fits
    assert torch.equal(y, before) is not fits


def test_what_does_not_fit_is_not_touched(kernel: Any) -> None:
    a, b, rows = case(2, (torch.float32, torch.float32), 4, 6, (3,))
    layer = cpu_kernel.Layer(a, b, (3,))
    y, x = rows(2)
    before = y.clone()

    def single(*places: int) -> cpu_kernel.Rows:
        found, *_ = cpu_batch.Batch(torch.tensor(places), {}, 4).split(99)
        assert found is not None
        return found

    for output, inputs, which in (
        (y, x, single(0, PLACES)),  # a place that is not there
        (y, x, single(0, 1, 2)),  # a row that is not there
        (y, x[:, :5], single(0)),  # inputs too narrow
        (y[:, :2], x, single(0)),  # outputs too narrow
        (y, torch.randn(6, 2).t(), single(0)),  # inputs that lie the other way
        (y.double(), x.double(), single(0)),  # a dtype without a function
    ):
        assert not cpu_kernel.add(kernel, output, inputs, layer, which, 1.0)
    assert torch.equal(y, before)
    assert not cpu_kernel.Layer(a, (b[0].contiguous(),), (3,)).fits, "B as PyTorch lays it out"


def test_only_weights_of_the_layer_can_be_put() -> None:
    """What the kernel is given as addresses has the shape, the order and the dtype that it takes them for."""
    a, b, _ = case(3, (torch.float32, torch.bfloat16), 4, 6, (3, 5))
    layer = cpu_kernel.Layer(a, b, (3, 5))
    for bad_a, bad_b in (
        (torch.ones(2, 7), torch.ones(3, 2)),  # inputs too wide
        (torch.ones(2, 6), torch.ones(4, 2)),  # outputs too wide
        (torch.ones(5, 6), torch.ones(3, 5)),  # a rank that no place has
        (torch.ones(2, 6), torch.ones(3, 3)),  # two ranks
        (torch.ones(6, 2).t(), torch.ones(3, 2)),  # A the other way round
        (torch.ones(2, 12).bfloat16()[:, ::2], torch.ones(3, 2)),
    ):
        with pytest.raises(ValueError, match="no weights for this layer"):
            layer.put(1, [(bad_a.to(torch.bfloat16), cpu_kernel.turned(bad_b.bfloat16())), None])
    for bad_a, bad_b in (
        (torch.ones(2, 6), cpu_kernel.turned(torch.ones(3, 2))),  # float32
        (torch.ones(2, 6).bfloat16(), torch.ones(3, 2).bfloat16()),  # B as PyTorch lays it out
    ):
        with pytest.raises(ValueError, match="no weights for this layer"):
            layer.put(1, [(bad_a, bad_b), None])
    with pytest.raises(ValueError, match="argument"):
        layer.put(1, [None])
    pair = layer.pair(1, 1)
    assert pair is not None
    assert pair[1].data_ptr() == b[1][1].data_ptr(), "refused weights change nothing"
