"""Host memory for staged adapters, handed from one that left to the next.

Fresh memory costs more than what is done with it: 48 MB are read in 11 ms of CPU where the pages are there, in 18 ms
where they come as huge pages and are cleared first, and in 40 ms where they come 4 KiB at a time.
"""

import contextlib
import mmap
import weakref
from typing import Any

import numpy as np
import torch

LARGE = 1 << 20
"""Bytes from which memory is mapped and kept; smaller adapters take it from the allocator, which keeps pages itself."""


class _Piece:
    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a kernel, or a Python, that knows no huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._lent: weakref.ref[Any] | None = None

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def idle(self) -> bool:
        """No tensor lies in it: each one's storage holds on to the array that it was made from."""
        return self._lent is None or self._lent() is None

    def lend(self) -> torch.Tensor:
        array = np.frombuffer(self._memory, dtype=np.uint8)
        self._lent = weakref.ref(array)
        return torch.from_numpy(array)


class StagedMemory:
    """Pieces of memory for the adapters of one engine. One that no tensor lies in any more is given out again.

    `trim` keeps at most one idle piece: where an adapter is dropped for each that is staged, no more is held than what
    host memory may stage. For one thread at a time.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    @property
    def held(self) -> int:
        """Bytes of all pieces, idle or not."""
        return sum(map(len, self._pieces))

    def take(self, size: int) -> torch.Tensor:
        """Bytes of any content, at least `size`, that nothing else uses while a tensor cut from them is there."""
        if size < LARGE:
            return torch.empty(size, dtype=torch.uint8)
        self.trim(size, 2 * size)
        piece = next((piece for piece in self._pieces if piece.idle), None)
        if piece is None:
            piece = _Piece(size)
            self._pieces.append(piece)
        return piece.lend()

    def trim(self, least: int = 0, most: int = 1 << 62, keep: int = 1) -> None:
        """Give idle pieces back, but for `keep` of at least and at most so many bytes."""
        good = [piece for piece in self._pieces if piece.idle and least <= len(piece) <= most][:keep]
        self._pieces = [piece for piece in self._pieces if not piece.idle or piece in good]
