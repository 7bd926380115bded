"""A recording's samples as blocks of windows: hours of it in about 70 MB (two blocks, and a minute that is searched).

Samples come from the decoder's pipe as they are wanted, so nothing is held, here or on the disk, of what was heard.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.speech.audio import RATE, Recording
from models.speech.voices import VoiceDetector
from models.speech.windows import Packer, Samples, Window

PART = 60 * RATE
"""Samples searched for voices at once, which takes 24 MB beside them (five minutes: 133 MB), and of a block without
voice detection."""
BLOCK = 300 * RATE
"""Samples after which windows are handed over though they are few. The first ones after PART, so that the first
segments of a long recording come soon."""
WINDOWS = 10
"""In a block, at most about so many: of 30 s, 19 MB of samples and 10 MB of features."""


@dataclass(frozen=True, slots=True)
class Block:
    """Windows with voices in them; without voice detection all samples, which begin `offset` into the recording."""

    audio: Samples
    offset: int
    final: bool
    windows: list[Window]


def read(recording: Recording, threshold: float | None, window: int) -> Iterator[Block]:
    """Blocks of a recording, with their windows of at most `window` samples if there is a threshold. The last is
    `final`, and may be empty.

    Blocks the thread: it waits for the decoder and searches for voices.
    """
    if threshold is None:
        for audio, offset, final in _parts(recording):
            yield Block(audio, offset, final, [])
        return
    voices, packer, windows = VoiceDetector(threshold, window), Packer(window), list[Window]()
    last_yield, patience = 0, PART
    for part, offset, final in _parts(recording):
        stretches = voices.add(part, final=final)
        windows += [full for start, audio in stretches if (full := packer.add(audio, start))]
        end = offset + len(part)
        if (final or (end - last_yield >= patience and not windows)) and (last := packer.flush()):
            windows.append(last)
        if final or len(windows) >= WINDOWS or (windows and end - last_yield >= patience):
            yield Block(part[:0], offset, final, windows)
            windows, last_yield, patience = [], end, BLOCK


def _parts(recording: Recording) -> Iterator[tuple[Samples, int, bool]]:
    """PART samples at a time, the place of the first, and whether they are the last, which may be none."""
    blocks: list[Samples] = []
    count = offset = 0
    for some in recording:
        blocks.append(some)
        count += len(some)
        if count >= PART:
            yield np.concatenate(blocks), offset, False
            offset += count
            blocks, count = [], 0
    yield np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32), offset, True
