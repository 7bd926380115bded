"""Which rows of a step belong to which adapter, cut into what each way of computing LoRA on a CPU takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from adapters import cpu_kernel

Numbers = npt.NDArray[np.int64]
Groups = list[tuple[int, torch.Tensor | None, int]]
"""(place, row numbers, rank) per adapter in the batch. Row numbers None: every row of the batch."""
Parts = tuple[cpu_kernel.Rows | None, cpu_kernel.Rows | None, Groups]
"""Rows for the kernel, rows for its tiles, groups for matrix products."""


class Batch:
    """Which rows of a step belong to which adapter, in the two forms that the layers need.

    Args:
        indices: one place per row; negative means no adapter.
        ranks: per place how many rows of A its adapter fills; the rest is zeros and is not multiplied.
        max_rank: stands for the places that `ranks` leaves out.
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
        self._split: dict[tuple[int, int], Parts] = {}

        self.any = bool(self._places)
        """Whether any row has an adapter."""
        self.calls: dict[int, cpu_kernel.Call] = {}
        """By layer, where the kernel does all rows."""

    def split(self, most: int, tiled: int = 0) -> Parts:
        """The rows of adapters whose rows times rank are up to `most`, those of others up to `tiled`, and the groups of
        all that have more."""
        key = min(most, self._most), min(tiled, self._most)
        if key not in self._split:
            self._split[key] = self._cut(*key)
        return self._split[key]

    def _cut(self, most: int, tiled: int) -> Parts:
        few, many, groups = _Chosen(), _Chosen(), Groups()
        start = 0
        for place, count, rank in zip(self._places, self._counts, self._ranks, strict=True):
            part = slice(start, start + count)
            if count * rank <= max(most, tiled):
                (few if count * rank <= most else many).add(part, rank)
            else:
                groups.append((place, None if self._whole else torch.from_numpy(self._row[part]), rank))
            start += count
        return few.rows(self._row, self._place), many.rows(self._row, self._place), groups


class _Chosen:
    def __init__(self) -> None:
        self._parts: list[slice] = []
        self._ranks: list[int] = []

    def add(self, part: slice, rank: int) -> None:
        self._parts.append(part)
        self._ranks += [rank] * (part.stop - part.start)

    def rows(self, row: Numbers, place: Numbers) -> cpu_kernel.Rows | None:
        if not self._parts:
            return None
        row, place = (np.concatenate([of[part] for part in self._parts]) for of in (row, place))
        return cpu_kernel.Rows(row, place, np.array(self._ranks, dtype=np.int64))
