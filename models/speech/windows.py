"""Which parts of a recording the network hears: windows of a length at most, made of the stretches with speech.

How long they may be is the recipe's `window.seconds`; here it is counted in samples.

Silence of more than a second between two stretches is left out of a window, and times are brought back afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RATE = 16_000
GAP = RATE
"""Silences of up to this many samples stay: words are heard in their rhythm."""

Samples = npt.NDArray[np.float32]
Stretch = tuple[int, int]
"""First sample, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch inside a window; all in seconds. `at`: where it begins in the window, `start`: in the recording."""

    at: float
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class Window:
    """What the network hears at once."""

    audio: Samples
    pieces: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        return len(self.audio) / RATE

    @property
    def end(self) -> float:
        """Where it ends in the recording."""
        return self.pieces[-1].start + self.pieces[-1].length

    def time(self, inside: float, *, end: bool = False) -> float:
        """A time in the recording for one in the window. At a seam, an `end` belongs to the stretch before it."""
        nearest = self.pieces[0]
        for piece in self.pieces:
            if piece.at < inside or (piece.at == inside and not end):
                nearest = piece
        return nearest.start + min(max(inside - nearest.at, 0.0), nearest.length)


def join_stretches(stretches: Sequence[Stretch], window: int) -> list[Stretch]:
    """Neighbours with a gap of at most a second become one, up to `window` samples. Overlaps are cut off."""
    result: list[Stretch] = []
    for start, end in stretches:
        if result and start - result[-1][1] <= GAP and end - result[-1][0] <= window:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
            continue
        start = max(start, result[-1][1]) if result else start
        while end - start > window:
            result.append((start, start + window))
            start += window
        if end > start:
            result.append((start, end))
    return result


class Packer:
    """Puts stretches, as they come, into windows of at most `window` samples without what lies between them.

    It holds copies of at most one window of sound, whatever the recording they are from.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._parts: list[Samples] = []
        self._pieces: list[Piece] = []
        self._count = 0

    def add(self, audio: Samples, start: int) -> Window | None:
        """Take a stretch that begins at sample `start` of its recording; the window that it found no room in."""
        full = self.flush() if self._count + len(audio) > self._window else None
        self._pieces.append(Piece(self._count / RATE, start / RATE, len(audio) / RATE))
        self._parts.append(audio.copy())
        self._count += len(audio)
        return full

    def flush(self) -> Window | None:
        """The window as far as it is filled; None when nothing waits."""
        if not self._parts:
            return None
        window = Window(np.concatenate(self._parts), tuple(self._pieces))
        self._parts, self._pieces, self._count = [], [], 0
        return window
