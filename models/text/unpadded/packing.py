"""A step's inputs one behind another, as tensors in host memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from models.text.unpadded.buckets import Bucket, padded

if TYPE_CHECKING:
    from torch import Tensor

    from models.text.tokens import Ids

IDS, POSITIONS, TYPES, OWNERS = range(4)
"""Rows of `Packing.rows`. OWNERS: the number of the input that a token belongs to."""


class Packing(NamedTuple):
    """T tokens of N inputs; with a bucket, the padding's behind them."""

    rows: "Tensor"
    """4 x T, int64."""
    boundaries: "Tensor"
    """N + 1 numbers of tokens, int32: where each input starts, and the end."""
    lengths: tuple[int, ...]
    """Tokens of each input, padding left out."""
    bucket: Bucket | None = None
    """The bucket whose shape `rows` and `boundaries` have; None: that of the inputs."""

    def without_padding(self) -> "Packing":
        """The same tensors, cut to the inputs."""
        rows, boundaries = self.rows[:, : sum(self.lengths)], self.boundaries[: len(self.lengths) + 1]
        return Packing(rows, boundaries, self.lengths)

    def pin(self) -> "Packing":
        """A copy in memory from which a GPU copies while this process goes on."""
        return self._replace(rows=self.rows.pin_memory(), boundaries=self.boundaries.pin_memory())

    def to(self, device: str) -> "Packing":
        rows = self.rows.to(device, non_blocking=True)
        return self._replace(rows=rows, boundaries=self.boundaries.to(device, non_blocking=True))


def pack(inputs: "Sequence[Ids]", first_position: int, bucket: Bucket | None = None) -> Packing:
    """Inputs one behind another. first_position: of an input's first token (`models.text.loading.first_position`)."""
    import torch

    lengths = tuple(len(given.ids) for given in inputs)
    boundaries = np.cumsum([0, *(lengths if bucket is None else padded(lengths, bucket))])
    rows = np.zeros((4, int(boundaries[-1])), np.int64)
    rows[POSITIONS] = first_position
    for number, given in enumerate(inputs):
        columns = slice(boundaries[number], boundaries[number + 1])
        rows[IDS, columns] = given.ids
        rows[POSITIONS, columns] = positions(rows[IDS, columns], first_position)
        rows[TYPES, columns] = given.types if given.types is not None else 0
        rows[OWNERS, columns] = number
    return Packing(torch.from_numpy(rows), torch.from_numpy(boundaries.astype(np.int32)), lengths, bucket)


def positions(ids: npt.NDArray[np.int64], first_position: int) -> npt.NDArray[np.int64]:
    """Positions of one input's tokens, as the network counts them.

    RoBERTa's begin behind the padding's, and a padding token in the middle of a text has the padding's and is not
    counted.
    """
    if first_position == 0:
        return np.arange(len(ids))
    padding = first_position - 1
    counted = ids != padding
    return np.where(counted, padding + np.cumsum(counted), padding)
