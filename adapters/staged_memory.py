"""Host memory for staged adapters, handed from one that left to the next.

Fresh memory costs more than what is done with it: 48 MB are read in 11 ms of CPU where the pages are there, in 18 ms
where they come as huge pages and are cleared first, and in 40 ms where they come 4 KiB at a time. A virtual machine
takes 130 ms for pages that its host never gave it. So some pieces are made ready between two adapters.
"""

import contextlib
import mmap
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

LARGE = 1 << 20
"""Bytes from which memory is mapped and kept; smaller adapters take it from the allocator, which keeps pages itself."""
SPARE = 4
"""Pieces that are made ready: adapters that come from disk one after the other find memory each."""
STEP = 2 << 20
"""Bytes that are made ready at a time: some milliseconds at most."""


class _Piece:
    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a kernel, or a Python, that knows no huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._lent: weakref.ref[Any] | None = None
        self.ready = 0
        """Bytes from the start whose pages are there."""

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def idle(self) -> bool:
        """No tensor lies in it: each one's storage holds on to the array that it was made from."""
        return self._lent is None or self._lent() is None

    def lend(self) -> torch.Tensor:
        array = np.frombuffer(self._memory, dtype=np.uint8)
        self._lent = weakref.ref(array)
        self.ready = len(self)
        return torch.from_numpy(array)

    def touch(self, size: int) -> None:
        """Have some more pages come; without Python's lock, as all of PyTorch's work."""
        torch.frombuffer(self._memory, dtype=torch.uint8)[self.ready : self.ready + size].fill_(0)
        self.ready += size


class StagedMemory:
    """Pieces of memory for the adapters of one engine. One that no tensor lies in any more is given out again.

    `trim` and `prepare` keep at most `SPARE` idle pieces, and `prepare` makes none beyond the number it is given: where
    an adapter is dropped for each that is staged, no more is held than what host memory may stage. For one thread at a
    time.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._taken = self.steady = 0
        """Bytes of the last piece taken; the same if the one before had as many or there was none, else 0."""

    @property
    def held(self) -> int:
        """Bytes of all pieces, idle or not."""
        return sum(map(len, self._pieces))

    def take(self, size: int) -> torch.Tensor:
        """Bytes of any content, at least `size`, that nothing else uses while a tensor cut from them is there."""
        if size < LARGE:
            return torch.empty(size, dtype=torch.uint8)
        self.trim(size, 2 * size)
        self._taken, self.steady = size, size if self._taken in (0, size) else 0
        piece = max((piece for piece in self._pieces if piece.idle), key=lambda piece: piece.ready, default=None)
        if piece is None:
            piece = _Piece(size)
            self._pieces.append(piece)
        return piece.lend()

    def trim(self, least: int = 0, most: int = 1 << 62, keep: int = SPARE) -> None:
        """Give idle pieces back, but for `keep` of at least and at most so many bytes. Where that is 0, none is
        prepared until the next is taken."""
        good = [piece for piece in self._pieces if piece.idle and least <= len(piece) <= most][:keep]
        self._pieces = [piece for piece in self._pieces if not piece.idle or piece in good]
        if not keep:
            self._taken = self.steady = 0

    def prepare(self, most: int, stop: Callable[[], bool]) -> None:
        """Make idle pieces ready, as large as the last taken if the one before was no other, until all are `most`.

        Ends early, to be called again, when `stop` says so; a quarter of its time it sleeps: a step may run beside it.
        """
        idle = [piece for piece in self._pieces if piece.idle]
        while self.steady and not stop():
            piece = next((piece for piece in idle if piece.ready < len(piece)), None)
            if piece is None:
                if len(idle) >= SPARE or len(self._pieces) >= most:
                    return
                piece = _Piece(self.steady)
                idle.append(piece)
                self._pieces.append(piece)
            began = time.monotonic()
            piece.touch(min(STEP, len(piece) - piece.ready))
            time.sleep((time.monotonic() - began) / 3)
