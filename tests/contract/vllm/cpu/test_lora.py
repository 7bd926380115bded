"""LoRA on a CPU, by the compiled kernel and by PyTorch, against plain matrix products in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.chat.vllm.cpu import products
from models.chat.vllm.cpu.kernel import KINDS, Kernel, fits
from models.chat.vllm.cpu.products import Batch, Layer, Rows, turned
from tests.contract.vllm.cpu.ways import WAYS, way

pytestmark = pytest.mark.real
PLACES = 5
DTYPES = list(KINDS)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    found = way("compiled")
    assert isinstance(found, Kernel)
    return found


def case(seed: int, kinds: tuple[torch.dtype, torch.dtype], rank: int, inputs: int, widths: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    a = tuple(some(kinds[1], PLACES, 1, rank, inputs) for _ in widths)
    b = tuple(turned(some(kinds[1], PLACES, 1, width, rank)) for width in widths)
    return a, b, lambda rows: (some(kinds[0], rows, sum(widths)), some(kinds[0], rows, inputs))


def reference(
    y: torch.Tensor, x: torch.Tensor, a: Any, b: Any, places: list[int], ranks: dict[int, int]
) -> torch.Tensor:
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


@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=60)
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
    name: str,
    seed: int,
    kinds: tuple[torch.dtype, torch.dtype],
    rank: int,
    inputs: int,
    widths: tuple[int, ...],
    places: list[int],
    most: int,
    data: st.DataObject,
) -> None:
    """With any limit of rows for the kernel. Values beyond an adapter's own rank are not read."""
    a, b, rows = case(seed, kinds, rank, inputs, widths)
    y, x = rows(len(places))
    ranks = {place: data.draw(st.integers(1, rank)) for place in range(PLACES)}
    for place, r in ranks.items():
        for half in (*a, *(b_.transpose(-1, -2) for b_ in b)):
            half[place, 0, r:] = float("nan")
    expected = reference(y, x, a, b, places, ranks)
    layer = Layer(a, b, widths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.chat.vllm.cpu.kernel.WORK", most * torch.get_num_threads() * layer.work)
        way(name)(y, x, layer, Batch(places, ranks, rank), 1.0)
    untouched = [row for row, place in enumerate(places) if place < 0]
    torch.testing.assert_close(y[untouched].double(), expected[untouched], rtol=0, atol=0)
    size = float(expected.abs().max()) + 1
    exact = kinds == (torch.float32, torch.float32)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=size * (1e-5 if exact else 2e-2))


def test_every_row_is_in_one_of_the_two_forms() -> None:
    rows, groups = Batch([2, -1, 0, 2, 2, 1], {0: 4}, 8).split(8)
    assert rows is not None
    assert [rows.row.tolist(), rows.place.tolist(), rows.rank.tolist()] == [[2, 5], [0, 1], [4, 8]]
    assert [(place, found.tolist(), rank) for place, found, rank in groups if found is not None] == [(2, [0, 3, 4], 8)]
    assert not Batch([-1, -1], {}, 8).any
    assert Batch([1, 1], {}, 8).split(0) == (None, [(1, None, 8)])


@pytest.mark.parametrize("name", WAYS)
def test_scale_and_rows_of_a_wider_tensor(name: str) -> None:
    a, b, rows = case(1, (torch.float32, torch.float32), 4, 6, (3, 2))
    y, x = rows(2)
    wide_y, wide_x = torch.zeros(2, 9), torch.zeros(2, 11)
    wide_y[:, :5], wide_x[:, :6] = y, x
    way(name)(wide_y, wide_x[:, :6], Layer(a, b, (3, 2)), Batch([3, 0], {}, 4), 0.5)
    expected = y.double() + 0.5 * (reference(y, x, a, b, [3, 0], {3: 4, 0: 4}) - y.double())
    torch.testing.assert_close(wide_y[:, :5].double(), expected, rtol=1e-5, atol=1e-5)
    assert bool((wide_y[:, 5:] == 0).all())


def test_arguments_that_do_not_fit_are_refused_and_nothing_is_written(kernel: Kernel) -> None:
    a, b, rows = case(2, (torch.float32, torch.float32), 4, 6, (3,))
    layer = Layer(a, b, (3,))
    y, x = rows(2)
    before = y.clone()

    def single(*places: int) -> Rows:
        found, _ = Batch(places, {}, 4).split(99)
        assert found is not None
        return found

    for output, inputs, which in (
        (y, x, single(0, PLACES)),  # a place that does not exist
        (y, x, single(0, 1, 2)),  # a row that does not exist
        (y, x[:, :5], single(0)),  # too few inputs
        (y[:, :2], x, single(0)),  # too few outputs
        (y, torch.randn(6, 2).t(), single(0)),  # transposed inputs
        (y.double(), x.double(), single(0)),  # a dtype without a function
    ):
        assert not kernel.add_rows(output, inputs, layer, which, 1.0)
    assert torch.equal(y, before)


def test_arguments_that_the_kernel_does_not_support_are_computed_by_products(kernel: Kernel) -> None:
    """Such as B in PyTorch's layout, and a dtype without a function."""
    for kinds, turn in (((torch.float32, torch.float32), False), ((torch.float64, torch.float64), True)):
        a, b, rows = case(2, kinds, 4, 6, (3,))
        layer = Layer(a, b if turn else (b[0].contiguous(),), (3,))
        assert fits(layer) is turn
        y, x = rows(3)
        expected = reference(y, x, a, b, [3, -1, 0], {3: 4, 0: 4})
        kernel(y, x, layer, Batch([3, -1, 0], {}, 4), 1.0)
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("rows", [products.WIDE_ROWS - 1, products.WIDE_ROWS, 40])
@pytest.mark.parametrize("whole", [False, True])
def test_bfloat16_is_right_where_it_is_emulated_and_where_it_is_not(
    native: bool, rows: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "native_bfloat16", lambda: native)
    torch.manual_seed(4)
    a, b = torch.randn(1, 1, 8, 24).bfloat16(), torch.randn(1, 1, 16, 8).bfloat16()
    inputs, output = torch.randn(rows + 2, 24).bfloat16(), torch.randn(rows + 2, 20).bfloat16()
    numbers = None if whole else torch.arange(rows) + 1
    mine = slice(None) if whole else slice(1, rows + 1)
    exact = output.double()
    exact[mine, :16] += 0.5 * (inputs[mine].double() @ a[0, 0].double().t()) @ b[0, 0].double().t()
    products.add_groups(output, inputs, Layer((a,), (b,), (16,)), [(0, numbers, 8)], 0.5)
    assert output.dtype is torch.bfloat16
    assert torch.allclose(output.double(), exact, rtol=2e-2, atol=1e-1)
    # in float32 nothing is rounded but the result, and the product before it is added
    if not native and rows >= products.WIDE_ROWS:
        assert torch.allclose(output.double(), exact, rtol=2**-7, atol=2**-5)
