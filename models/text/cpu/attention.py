"""Attention on a CPU over inputs of any lengths in one call, by `attention.c`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.text.cpu import library as cpu_library

if TYPE_CHECKING:
    from torch import Tensor

MOST_TOKENS, MOST_SIZE, STEP = 512, 128, 32
"""Tokens of an input, values of a head, and of what these are a multiple: as in the source."""


class Attention:
    """For `heads` heads of `size` values each. Use `of`, which says where there is one."""

    def __init__(self, heads: int, size: int) -> None:
        library = cpu_library.load()
        assert library is not None
        self._attend, self.heads, self.size = library.attend, heads, size
        self._scale = math.log2(math.e) / math.sqrt(size)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> Tensor:
        """Rows x width. `query` has a row for each token, or one for each input; `lengths`: of each input, in tokens.

        Each is rows x width in float32; keys and values have equal strides.
        """
        import torch

        starts = torch.tensor([0, *lengths]).cumsum(0)
        tokens, width = int(starts[-1]), self.heads * self.size
        single = len(query) != tokens
        if not (
            all(t.dtype == torch.float32 and t.is_cpu and t.stride(1) == 1 for t in (query, keys, values))
            and query.shape == (len(lengths) if single else tokens, width)
            and keys.shape == values.shape == (tokens, width)
            and keys.stride(0) == values.stride(0)
            and min(lengths) > 0
            and max(lengths) <= MOST_TOKENS
        ):
            raise ValueError(f"no rows to attend: {[tuple(t.shape) for t in (query, keys, values)]}, {lengths}")
        out = query.new_empty(query.shape)
        self._attend(
            query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(), keys.stride(0), out.data_ptr(),
            width, starts.data_ptr(), len(lengths), single, self.heads, self.size, self._scale,
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def of(heads: int, size: int, positions: int) -> Attention | None:
    """None where PyTorch has to compute it: other sizes, inputs that may be longer, no library."""
    fits = size % STEP == 0 and size <= MOST_SIZE and positions <= MOST_TOKENS
    return Attention(heads, size) if fits and cpu_library.load() is not None else None
