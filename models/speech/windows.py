"""From samples to the network's windows, in about 70 MB for hours of sound.

`VoiceDetector` finds speech as if the recording had come in one part: the Silero model that comes with faster-whisper
gives the probability of a voice for each frame of 32 ms, and keeps its state from part to part. The last stretch may go
on in the next part, so it is looked at again from its beginning. `Packer` puts stretches into windows of at most the
recipe's `window.seconds`; silence of more than a second between two stretches is left out, and times are brought back
afterwards. `read` yields blocks of windows as samples come from the decoder's pipe.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.speech.audio import Recording

RATE = 16_000
GAP = RATE
"""Silences of up to this many samples stay: words are heard in their rhythm."""

Samples = npt.NDArray[np.float32]
Stretch = tuple[int, int]
"""First sample, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch, in seconds. `at`: place in the window, `start`: in the recording."""

    at: float
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class Window:
    """The sound that the network takes at once."""

    audio: Samples
    pieces: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        return len(self.audio) / RATE

    @property
    def end(self) -> float:
        """The window's end in the recording."""
        return self.pieces[-1].start + self.pieces[-1].length

    def time(self, inside: float, *, end: bool = False) -> float:
        """A time in the recording for one in the window. At a seam, an `end` belongs to the stretch before it."""
        nearest = self.pieces[0]
        for piece in self.pieces:
            if piece.at < inside or (piece.at == inside and not end):
                nearest = piece
        return nearest.start + min(max(inside - nearest.at, 0.0), nearest.length)


def join_stretches(stretches: Sequence[Stretch], window: int) -> list[Stretch]:
    """Join neighbours with gaps up to a second, up to `window` samples."""
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
    """Packs stretches into windows of `window` samples, without the gaps.

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


FRAME = 512
"""Samples of one probability."""
CONTEXT = 64
"""Samples of the previous frame that the model takes, too."""
PAD = 2 * RATE // 5
"""Samples kept before and after a voice, or half of the silence to the next one."""
PAUSE = 5
"""Frames of silence that end a speech (160 ms)."""
BREATH = 4
"""Frames of silence at which one that is too long is cut (128 ms)."""
FALL = 0.15
"""A speech goes on while the probability is not lower than the threshold by more than this."""

Probabilities = npt.NDArray[np.float32]


class VoiceDetector:
    """A recording's stretches with a voice, with silences up to a second.

    It holds the samples of the last stretch, less than a window and a few seconds, or a second of silence.
    """

    def __init__(self, threshold: float, window: int) -> None:
        self._threshold, self._window = threshold, window
        self._model = _Model()
        self._audio: Samples = np.zeros(0, dtype=np.float32)
        self._begin = 0
        """Place of its first sample in the recording."""
        self._probabilities: Probabilities = np.zeros(0, dtype=np.float32)
        self._frame = 0
        """Place of the first of them, in frames: that of a beginning, or of silence."""

    @property
    def pending_samples(self) -> int:
        """Samples that wait for what follows."""
        return len(self._audio)

    def add(self, part: Samples, *, final: bool) -> list[tuple[int, Samples]]:
        """Take the next samples. Stretches that cannot go on, with the place of their first sample, in order."""
        self._audio = np.concatenate([self._audio, part])
        self._probabilities = np.concatenate([self._probabilities, self._model.hear(part, final=final)])
        begin, count = self._begin, self._begin + len(self._audio)
        frames = self._frame + len(self._probabilities)
        voiced = speeches(self._probabilities, self._threshold, longest_speech(self._window))
        placed = [(self._frame + start, self._frame + end) for start, end in voiced]
        stretches = join_stretches(padded(placed, begin, count), self._window)
        done, frame = max(begin, count - RATE), frames
        if stretches and not final:
            # Whatever comes is too far away to be joined, or to share the silence with it.
            if placed[-1][1] * FRAME + 2 * PAD + GAP < frames * FRAME:
                done = max(stretches[-1][1], done)
            else:
                done = stretches.pop()[0]
                frame = next(start for start, _ in placed if start * FRAME >= done)
        settled = [(start, self._audio[start - begin : end - begin].copy()) for start, end in stretches]
        self._audio, self._begin = self._audio[done - begin :].copy(), done
        self._probabilities, self._frame = self._probabilities[frame - self._frame :].copy(), frame
        return settled


def longest_speech(window: int) -> int:
    """Frames of a speech that fits into such a window, with its surroundings."""
    return (window - 2 * PAD - FRAME) // FRAME


def speeches(probabilities: Probabilities, threshold: float, longest: int) -> Iterator[Stretch]:
    """Speeches as first frame and end. The last may end with the probabilities.

    One begins at a frame of at least `threshold`, and ends where PAUSE frames in a row have none that high and begin
    with one that is much lower. One of more than `longest` frames is cut where it last drew BREATH, else there.
    """
    voice = probabilities >= threshold
    silent = probabilities < max(threshold - FALL, 0.01)
    count, frame = len(voice), 0
    while frame < count:
        ahead = np.flatnonzero(voice[frame:])
        if not len(ahead):
            return
        start = frame + int(ahead[0])
        end, frame = _end(voice, silent, start, longest)
        yield start, end


def _end(voice: npt.NDArray[np.bool_], silent: npt.NDArray[np.bool_], start: int, longest: int) -> Stretch:
    """The end of the speech from `start`, and the frame where to look for the next."""
    quiet = breath = 0
    """Beginnings of the current silence, and of the last one that was long enough to cut at. 0: none."""
    for frame in range(start + 1, len(voice)):
        if voice[frame]:
            quiet = 0
        elif silent[frame] and not quiet:
            quiet = frame
        if frame - start > longest:
            return (breath, breath) if breath else (frame, frame)
        if quiet and silent[frame]:
            if frame - quiet >= BREATH:
                breath = quiet
            if frame - quiet >= PAUSE:
                return quiet, frame
    return len(voice), len(voice)


def padded(speeches: list[Stretch], begin: int, count: int) -> list[Stretch]:
    """Speeches as samples, with PAD around them, or half of a silence."""
    result: list[Stretch] = []
    for index, (first, last) in enumerate(speeches):
        start, end = first * FRAME, last * FRAME
        before = start - speeches[index - 1][1] * FRAME if index else 2 * PAD
        after = speeches[index + 1][0] * FRAME - end if index + 1 < len(speeches) else 2 * PAD
        stretch = max(begin, start - min(PAD, before // 2)), min(count, end + min(PAD, after // 2))
        if stretch[1] > stretch[0]:
            result.append(stretch)
    return result


class _Model:
    """Silero's network with its state: probabilities of a recording, frame by frame."""

    def __init__(self) -> None:
        from faster_whisper.vad import get_vad_model

        self._session: Any = get_vad_model().session
        self._state = np.zeros((1, 1, 128), dtype=np.float32), np.zeros((1, 1, 128), dtype=np.float32)
        self._context: Samples = np.zeros(CONTEXT, dtype=np.float32)
        self._rest: Samples = np.zeros(0, dtype=np.float32)

    def hear(self, audio: Samples, *, final: bool) -> Probabilities:
        """Probabilities of the frames that are whole now; at the end the rest is filled up with silence."""
        audio = np.concatenate([self._rest, audio])
        if final:
            audio = np.concatenate([audio, np.zeros(-len(audio) % FRAME, dtype=np.float32)])
        count = len(audio) // FRAME
        self._rest = audio[count * FRAME :].copy()
        if not count:
            return np.zeros(0, dtype=np.float32)
        frames = audio[: count * FRAME].reshape(count, FRAME)
        before = np.concatenate([self._context[None], frames[:-1, -CONTEXT:]])
        self._context = frames[-1, -CONTEXT:].copy()
        h, c = self._state
        output, *state = self._session.run(None, {"input": np.concatenate([before, frames], 1), "h": h, "c": c})
        self._state = state[0], state[1]
        return np.asarray(output, dtype=np.float32).reshape(-1)


PART = 60 * RATE
"""Samples searched for voices at once, which takes 24 MB beside them (five minutes: 133 MB), and of a block without
voice detection."""
BLOCK = 300 * RATE
"""Samples after which windows are handed over though they are few. The first ones after PART, so that the first
segments of a long recording come soon."""
WINDOWS = 10
"""Most windows of a block, about: of 30 s, 19 MB of samples and 10 MB of features."""


@dataclass(frozen=True, slots=True)
class Block:
    """Windows with voices; without detection all samples from `offset` on."""

    audio: Samples
    offset: int
    final: bool
    windows: list[Window]


def read(recording: Recording, threshold: float | None, window: int) -> Iterator[Block]:
    """Blocks of a recording, with windows if there is a threshold.

    The last is `final`, and may be empty.

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
