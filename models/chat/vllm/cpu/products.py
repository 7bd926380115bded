"""LoRA on a CPU with PyTorch: one pair of products per adapter and slice.

Works on any machine, but is slow with many adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from registry.files.context import native_bfloat16

Tensors = tuple[torch.Tensor, ...]


class Layer:
    """A layer's weights. Shapes, one per slice: A (places, 1, rank, inputs), B (places, 1, width, rank)."""

    def __init__(self, stacked_a: Tensors, stacked_b: Tensors, slices: tuple[int, ...]) -> None:
        self.places, _, self.rank, self.inputs = stacked_a[0].shape
        self.outputs, self.slices, self.dtype = sum(slices), slices, stacked_a[0].dtype
        self.a, self.b = stacked_a, stacked_b
        self.work = len(slices) * self.inputs + self.outputs
        """Multiplications per row and rank."""


def turned(b: torch.Tensor) -> torch.Tensor:
    """Copy a tensor so that its second to last dimension is contiguous, which is the kernel's order."""
    return b.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)


Numbers = npt.NDArray[np.int64]
Groups = list[tuple[int, torch.Tensor | None, int]]
"""(place, row numbers, rank) per adapter in the batch. Row numbers are None for all rows of the batch."""


class Rows:
    """Rows of a batch with the place and rank of their adapters, one entry per row."""

    def __init__(self, row: Numbers, place: Numbers, rank: Numbers) -> None:
        self.row, self.place, self.rank = row, place, rank
        self.last_row, self.last_place = int(row.max()), int(place.max())
        self.addresses = row.ctypes.data, place.ctypes.data, rank.ctypes.data


class Batch:
    """The rows of a step that belong to each adapter.

    Args:
        indices: one place per row; negative for no adapter.
        ranks: place to the rows of A that its adapter fills; the rest is zeros and is not multiplied.
        max_rank: rank of the places that are not in `ranks`.
    """

    def __init__(self, indices: Sequence[int], ranks: dict[int, int], max_rank: int) -> None:
        of_row = np.asarray(indices, dtype=np.int64)
        row = np.flatnonzero(of_row >= 0)
        row = row[np.argsort(of_row[row], kind="stable")]
        self._row, self._place = row, of_row[row]
        starts = np.flatnonzero(np.diff(self._place, prepend=-1))
        self._places: list[int] = self._place[starts].tolist()
        self._counts: list[int] = np.diff(starts, append=len(row)).tolist()
        self._ranks = [ranks.get(place, max_rank) for place in self._places]
        self._most = max((count * rank for count, rank in zip(self._counts, self._ranks, strict=True)), default=0)
        self._whole = len(self._places) == 1 and self._counts[0] == len(of_row)
        self._split: dict[int, tuple[Rows | None, Groups]] = {}

        self.any = bool(self._places)
        """Whether any row has an adapter."""

    def split(self, most: int) -> tuple[Rows | None, Groups]:
        """Return the rows of adapters with at most `most` rows times rank, and the groups of all others."""
        key = min(most, self._most)
        if key not in self._split:
            self._split[key] = self._cut(key)
        return self._split[key]

    def _cut(self, most: int) -> tuple[Rows | None, Groups]:
        parts, ranks, groups = list[slice](), list[int](), Groups()
        start = 0
        for place, count, rank in zip(self._places, self._counts, self._ranks, strict=True):
            part = slice(start, start + count)
            if count * rank <= most:
                parts.append(part)
                ranks += [rank] * count
            else:
                groups.append((place, None if self._whole else torch.from_numpy(self._row[part]), rank))
            start += count
        if not parts:
            return None, groups
        rows, places = (np.concatenate([of[part] for part in parts]) for of in (self._row, self._place))
        return Rows(rows, places, np.array(ranks, dtype=np.int64)), groups


WIDE_ROWS = 8
"""Number of rows from which a processor that emulates bfloat16 multiplies in float32. Including the cast of A and B,
products then take half the time at 16 rows and a quarter at 200 (512 x 1,408, rank 256)."""


def add(output: torch.Tensor, inputs: torch.Tensor, layer: Layer, batch: Batch, scale: float) -> None:
    """Compute output[rows, slice] += scale * (inputs[rows] @ A.T) @ B.T for all adapters and slices, in place.

    Shapes: output (rows, sum of slices), inputs (rows, width).
    """
    add_groups(output, inputs, layer, batch.split(0)[1], scale)


def add_groups(output: torch.Tensor, inputs: torch.Tensor, layer: Layer, groups: Groups, scale: float) -> None:
    """Add these adapters. A and B are cast to the inputs' dtype if theirs is narrower; for bfloat16 see `WIDE_ROWS`."""
    emulated = inputs.dtype is torch.bfloat16 and not native_bfloat16()
    for place, rows, rank in groups:
        chosen = inputs if rows is None else inputs.index_select(0, rows)
        if emulated and len(chosen) >= WIDE_ROWS:
            chosen = chosen.float()
        offset = 0
        for a, b, width in zip(layer.a, layer.b, layer.slices, strict=True):
            target = output[:, offset : offset + width]
            offset += width
            shrunk = chosen @ a[place, 0, :rank].to(chosen.dtype).t()
            delta = shrunk @ b[place, 0, :, :rank].to(chosen.dtype).t()
            if scale != 1.0:
                delta = delta * scale
            if rows is None:
                target += delta
            else:
                target.index_add_(0, rows, delta.to(output.dtype))
