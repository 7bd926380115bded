"""Values that are not finite are found before an adapter is used, and large finite ones are accepted."""

import math

import pytest
import torch

from models.chat.vllm.adapters.read import finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf], [math.nan, math.inf]])
@pytest.mark.parametrize("turned", [False, True])
def test_one_bad_value_is_enough(dtype: torch.dtype, bad: list[float], turned: bool) -> None:
    values = torch.randn(64, 300, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert finite(values.t() if turned else values)
    for number, value in enumerate(bad):
        values[17 * (number + 1), 250 - number] = value
    assert not finite(values.t() if turned else values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_that_overflows_is_checked_value_by_value(dtype: torch.dtype) -> None:
    values = torch.full((64, 300), torch.finfo(dtype).max, dtype=dtype)
    assert torch.isinf(values.sum())
    assert finite(values)
    values[5, 5] = math.nan
    assert not finite(values)
