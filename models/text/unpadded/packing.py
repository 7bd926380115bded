"""Concatenate a step's inputs, as tensors in host memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from models.text.unpadded.buckets import Bucket, padded

if TYPE_CHECKING:
    from torch import Tensor

    from models.text.tokens import Ids

IDS, POSITIONS, TYPES, OWNERS = range(4)
"""Rows of `Packing.rows`. OWNERS is the number of a token's input."""


class Packing(NamedTuple):
    """T tokens of N inputs; with a bucket, including its padding at the end."""

    rows: "Tensor"
    """4 x T, int64."""
    boundaries: "Tensor"
    """N + 1 token offsets, int32: the start of each input, and the end."""
    lengths: tuple[int, ...]
    """Tokens of each input, without padding."""
    bucket: Bucket | None = None
    """The bucket whose shape `rows` and `boundaries` have; None for the shape of the inputs."""

    def without_padding(self) -> "Packing":
        """Return the tensors cut to the inputs."""
        rows, boundaries = self.rows[:, : sum(self.lengths)], self.boundaries[: len(self.lengths) + 1]
        return Packing(rows, boundaries, self.lengths)

    def pin(self) -> "Packing":
        """Return a copy in pinned memory, for asynchronous copies to a GPU."""
        return self._replace(rows=self.rows.pin_memory(), boundaries=self.boundaries.pin_memory())

    def to(self, device: str) -> "Packing":
        rows = self.rows.to(device, non_blocking=True)
        return self._replace(rows=rows, boundaries=self.boundaries.to(device, non_blocking=True))


def pack(inputs: "Sequence[Ids]", first_position: int, bucket: Bucket | None = None) -> Packing:
    """Concatenate inputs. first_position: of an input's first token (`models.text.loading.first_position`)."""
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
    """Return the positions of one input's tokens, as the network counts them.

    RoBERTa's start after the padding's position; a padding token within a text has that position and is not counted.
    """
    if first_position == 0:
        return np.arange(len(ids))
    padding = first_position - 1
    counted = ids != padding
    return np.where(counted, padding + np.cumsum(counted), padding)
