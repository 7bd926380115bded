"""Which rows of a step belong to which adapter, cut into what each way of computing LoRA on a CPU takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.int64]
Groups = list[tuple[int, torch.Tensor | None, int]]
"""(place, row numbers, rank) per adapter in the batch. Row numbers None: every row of the batch."""


class Rows:
    """Rows of a batch with the place and the rank of each one's adapter, one entry per row."""

    def __init__(self, row: Numbers, place: Numbers, rank: Numbers) -> None:
        self.row, self.place, self.rank = row, place, rank
        self.last_row, self.last_place = int(row.max()), int(place.max())
        self.addresses = row.ctypes.data, place.ctypes.data, rank.ctypes.data


class Batch:
    """Which rows of a step belong to which adapter.

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
        self._split: dict[int, tuple[Rows | None, Groups]] = {}

        self.any = bool(self._places)
        """Whether any row has an adapter."""

    def split(self, most: int) -> tuple[Rows | None, Groups]:
        """The rows of adapters whose rows times rank are up to `most`, and the groups of all that have more."""
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
