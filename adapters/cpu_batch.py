"""Which rows of a step belong to which adapter, cut into what each way of computing LoRA on a CPU takes."""

from __future__ import annotations

import torch

from adapters import cpu_kernel

Groups = list[tuple[int, torch.Tensor | None, int]]
"""(place, row numbers, rank) per adapter in the batch. Row numbers None: every row of the batch."""
Parts = tuple[cpu_kernel.Rows | None, cpu_kernel.Rows | None, Groups]
"""Rows for the kernel, rows for its tiles, groups for matrix products."""


class Batch:
    """Which rows of a step belong to which adapter, in the two forms that the layers need.

    Args:
        indices: one place per row (int64, on the CPU); negative means no adapter.
        ranks: per place how many rows of A its adapter fills; the rest is zeros and is not multiplied.
        max_rank: stands for the places that `ranks` leaves out.
    """

    def __init__(self, indices: torch.Tensor, ranks: dict[int, int], max_rank: int) -> None:
        row = (indices >= 0).nonzero().squeeze(1)
        place = indices[row]
        order = torch.argsort(place, stable=True)
        self._row, self._place = row[order], place[order]
        places, counts = torch.unique_consecutive(self._place, return_counts=True)
        self._places: list[int] = places.tolist()
        self._counts: list[int] = counts.tolist()
        self._ranks = [ranks.get(place, max_rank) for place in self._places]
        self._most = max((count * rank for count, rank in zip(self._counts, self._ranks, strict=True)), default=0)
        self._whole = len(self._places) == 1 and self._counts[0] == indices.numel()
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
            part = torch.arange(start, start + count)
            if count * rank <= max(most, tiled):
                (few if count * rank <= most else many).add(part, rank)
            else:
                groups.append((place, None if self._whole else self._row[part], rank))
            start += count
        return few.rows(self._row, self._place), many.rows(self._row, self._place), groups


class _Chosen:
    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        self._ranks: list[int] = []

    def add(self, part: torch.Tensor, rank: int) -> None:
        self._parts.append(part)
        self._ranks += [rank] * len(part)

    def rows(self, row: torch.Tensor, place: torch.Tensor) -> cpu_kernel.Rows | None:
        if not self._parts:
            return None
        chosen = torch.cat(self._parts)
        return cpu_kernel.Rows(row[chosen], place[chosen], torch.tensor(self._ranks, dtype=torch.int64))
