"""Plans for batches: the utterances in each window, their positions, and the tokens that the model should predict.

A planner runs in its own process and only knows lengths and words. The audio is in the accelerator's memory, where
``mixing`` combines it. Times are encoder positions of 20 ms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starter_training.speech import tokens
from starter_training.speech.synthesis.corpus import HOP

SLOTS = 8
"""Most utterances in one window."""
IGNORE = -100

Item = tuple[str, int, int, list[tuple[float, float]]]
"""Text, first sample in the flat audio, samples, word spans in seconds."""


@dataclass(frozen=True)
class Plan:
    """A batch of B windows of ``frames`` mel frames (10 ms) with L tokens each.

    Attributes:
        start, source, length: [B, SLOTS], where a slot begins in the window and its audio in the flat array, and its
            samples (0: empty).
        rate, gain: [B, SLOTS], playback rate and amplitude.
        end: [B], mel frames of real signal; the rest is zero, like faster-whisper's padding.
        offset: [B], encoder position at which the window begins.
        speech: [B], False for a window without speech.
        ids, labels: [B, L], decoder input and target.
        first, last: [B, L], encoder positions that a label's word covers, -1 for none.
    """

    frames: int
    start: NDArray[np.int64]
    source: NDArray[np.int64]
    length: NDArray[np.int64]
    rate: NDArray[np.float32]
    gain: NDArray[np.float32]
    end: NDArray[np.int64]
    offset: NDArray[np.int64]
    speech: NDArray[np.bool_]
    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


class _Row:
    """The tokens of a window. ``say`` adds a target with its span."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.labels: list[int] = []
        self.spans: list[tuple[int, int]] = []

    def read(self, token: int) -> None:
        """Add a token as the next input that the model need not predict."""
        if self.ids:
            self.labels.append(IGNORE)
            self.spans.append((-1, -1))
        self.ids.append(token)

    def say(self, token: int, span: tuple[int, int] = (-1, -1)) -> None:
        self.labels.append(token)
        self.spans.append(span)
        self.ids.append(token)


class Planner:
    """Draws plans from the utterances known so far."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._items: list[Item] = []
        self._ids = tokens.ids()

    def add(self, items: list[Item], offset: int) -> None:
        """Add utterances whose shard begins at sample ``offset`` of the flat audio."""
        self._items.extend((text, offset + first, size, spans) for text, first, size, spans in items)

    def plan(self, frames: int, rows: int, most: int) -> Plan:
        """Draw a batch of ``rows`` windows, each with 0 to ``most`` utterances."""
        arrays = {
            "start": np.full((rows, SLOTS), 1 << 40, np.int64),
            "source": np.zeros((rows, SLOTS), np.int64),
            "length": np.zeros((rows, SLOTS), np.int64),
        }
        rate = np.ones((rows, SLOTS), np.float32)
        gain = np.zeros((rows, SLOTS), np.float32)
        end = np.zeros(rows, np.int64)
        offset = np.zeros(rows, np.int64)
        speech = np.zeros(rows, np.bool_)
        texts: list[_Row] = []
        for row in range(rows):
            offset[row] = self._offset(frames)
            texts.append(self._row(row, frames, most, arrays, rate, gain, end, int(offset[row])))
            speech[row] = arrays["length"][row, 0] > 0
        width = -(-max(len(text.ids) for text in texts) // 16) * 16
        ids = np.full((rows, width), self._ids.end, np.int64)
        labels = np.full((rows, width), IGNORE, np.int64)
        spans = np.full((rows, width, 2), -1, np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = text.ids
            labels[row, : len(text.labels)] = text.labels
            spans[row, : len(text.spans)] = text.spans
        return Plan(
            frames, arrays["start"], arrays["source"], arrays["length"], rate, gain, end, offset, speech, ids,
            labels, spans[..., 0], spans[..., 1],
        )  # fmt: skip

    def _offset(self, frames: int) -> int:
        room = 1500 - frames // 2
        return 0 if room == 0 or self._rng.random() < 0.3 else self._rng.randint(0, room)

    def _row(
        self,
        row: int,
        frames: int,
        most: int,
        arrays: dict[str, NDArray[np.int64]],
        rate: NDArray[np.float32],
        gain: NDArray[np.float32],
        end: NDArray[np.int64],
        offset: int,
    ) -> _Row:
        rng = self._rng
        samples = frames * 160
        expected = 0 if rng.random() < 0.08 else rng.randint(1, most) if rng.random() < 0.7 else most
        position = rng.randint(0, 9600) if rng.random() < 0.85 else 0
        speed = rng.uniform(0.87, 1.15) if rng.random() < 0.6 else 1.0
        loud = rng.uniform(0.1, 1.2)
        cut: int | None = None
        placed: list[tuple[Item, int, float]] = []
        while len(placed) < expected:
            item = rng.choice(self._items)
            size = int(item[2] / speed)
            if position + size > samples:
                if placed and frames == 3000:  # The window ends in mid-sentence: predict where that began.
                    cut = position if samples - position > 8000 else None
                    if cut is not None:
                        slot = len(placed)
                        arrays["start"][row, slot], arrays["source"][row, slot] = position, item[1]
                        arrays["length"][row, slot] = item[2]
                        rate[row, slot], gain[row, slot] = speed, loud
                if not placed and size < samples:
                    position = 0
                    continue
                if not placed and position > 0:
                    position = 0
                    continue
                if not placed:
                    continue
                break
            slot = len(placed)
            arrays["start"][row, slot], arrays["source"][row, slot] = position, item[1]
            arrays["length"][row, slot] = item[2]
            rate[row, slot], gain[row, slot] = speed, loud * rng.uniform(0.6, 1.4)
            placed.append((item, position, speed))
            position += size + (rng.randint(400, 9600) if rng.random() < 0.75 else rng.randint(0, 40000))
            if slot == SLOTS - 1:
                break
        last = max((at + int(item[2] / pace) for item, at, pace in placed), default=rng.randint(4800, samples))
        if cut is not None or rng.random() < 0.2:
            end[row] = frames
        else:
            end[row] = min(frames, last // 160 + rng.randint(0, 120))
        return self._text(placed, cut, offset)

    def _text(self, placed: list[tuple[Item, int, float]], cut: int | None, offset: int) -> _Row:
        rng, ids, text = self._rng, self._ids, _Row()
        timed = rng.random() < 0.55

        def stamp(position: float) -> int:
            return ids.time_zero + min(1500, max(0, offset + round(position)))

        if rng.random() < 0.1:
            text.read(ids.previous)
            for _ in range(rng.randint(1, 4)):
                begin = rng.randint(0, 1300)
                words = [ids.words[word] for word in rng.choice(self._items)[0].split()]
                for token in [stamp(begin), *words, stamp(begin + 100)] if timed else words:
                    text.read(token)
        text.read(ids.start)
        if not placed:
            # The first step predicts no-speech; in both modes an empty text follows.
            text.labels.append(ids.no_speech)
            text.spans.append((-1, -1))
            text.ids.append(ids.time_zero + offset if timed else ids.no_timestamps)
        elif not timed:
            text.read(ids.no_timestamps)
        for item, at, pace in placed:
            spans = [
                ((at + begin * 16000 / pace) / HOP, (at + finish * 16000 / pace) / HOP) for begin, finish in item[3]
            ]
            if timed:
                opening = spans[0][0]
                text.say(stamp(opening), (max(0, int(opening) - 8), int(opening) + 8))
            for word, (first, last) in zip(item[0].split(), spans, strict=True):
                text.say(ids.words[word], (max(0, int(first)), int(last) + 2))
            if timed:
                finish = spans[-1][1]
                text.say(stamp(finish), (max(0, int(finish) - 8), int(finish) + 8))
        if cut is not None and timed:
            text.say(stamp(cut / HOP), (max(0, cut // HOP - 4), cut // HOP + 8))
        text.labels.append(ids.end)
        text.spans.append((-1, -1))
        return text
