"""Which parts of a recording the network hears: windows of at most 30 seconds, made of the stretches with speech.

Silence of more than a second between two stretches is left out of a window, and times are brought back afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 16_000
WINDOW = 30 * RATE
"""Samples that Whisper hears at once."""
GAP = RATE
"""Silences of up to this many samples stay: words are heard in their rhythm."""
TAIL = RATE
"""Kept from a block without speech: a word may have begun in it."""

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

    def time(self, inside: float, *, end: bool = False) -> float:
        """A time in the recording for one in the window. At a seam, an `end` belongs to the stretch before it."""
        found = self.pieces[0]
        for piece in self.pieces:
            if piece.at < inside or (piece.at == inside and not end):
                found = piece
        return found.start + min(max(inside - found.at, 0.0), found.length)


@dataclass(frozen=True, slots=True)
class Cut:
    """Windows of a block, and the number of its samples that are done with: the rest comes again with the next."""

    windows: list[Window]
    consumed: int


def speech(audio: Samples, threshold: float) -> list[Stretch]:
    """Stretches with a voice, each at most 30 s, by the Silero model that comes with faster-whisper."""
    from faster_whisper.vad import VadOptions, get_speech_timestamps

    options = VadOptions(threshold=threshold, max_speech_duration_s=30.0, min_silence_duration_ms=160)
    found: list[dict[str, Any]] = get_speech_timestamps(audio, options)
    return [(int(part["start"]), int(part["end"])) for part in found if part["end"] > part["start"]]


def joined(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Neighbours with a gap of at most a second become one, up to 30 s. Overlaps are cut off."""
    result: list[Stretch] = []
    for start, end in stretches:
        if result and start - result[-1][1] <= GAP and end - result[-1][0] <= WINDOW:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
            continue
        start = max(start, result[-1][1]) if result else start
        while end - start > WINDOW:
            result.append((start, start + WINDOW))
            start += WINDOW
        if end > start:
            result.append((start, end))
    return result


def packed(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Groups in order, of at most 30 s each without their gaps."""
    groups: list[list[Stretch]] = []
    room = 0
    for start, end in stretches:
        if end - start > room:
            groups.append([])
            room = WINDOW
        groups[-1].append((start, end))
        room -= end - start
    return groups


def cut(audio: Samples, offset: int, stretches: Sequence[Stretch], final: bool) -> Cut:
    """Windows of a block that begins `offset` samples into its recording.

    More may follow unless `final`: then the last window (or, where it is the only one, its last stretch) is left for
    the next block, since its speech may go on there. At most 30 s of speech and the silence in it come again.
    """
    groups = packed(joined(stretches))
    consumed = len(audio)
    if not final:
        if len(groups) > 1:
            consumed = groups.pop()[0][0]
        elif groups:
            consumed = groups[0].pop()[0]
            groups = [group for group in groups if group]
        else:
            consumed = max(0, len(audio) - TAIL)
    return Cut([_window(audio, offset, group) for group in groups], consumed)


def _window(audio: Samples, offset: int, group: Sequence[Stretch]) -> Window:
    at = 0
    pieces = []
    for start, end in group:
        pieces.append(Piece(at / RATE, (offset + start) / RATE, (end - start) / RATE))
        at += end - start
    return Window(np.concatenate([audio[start:end] for start, end in group]), tuple(pieces))
