"""Turn samples into the network's windows, in about 70 MB for hours of sound.

`VoiceDetector` finds speech, with the same result for any division into parts: the Silero model of faster-whisper gives
the probability of a voice for each frame of 32 ms, and keeps its state between parts. The last stretch may continue in
the next part, so it is processed again from its start. `Packer` packs stretches into windows of at most the recipe's
`window.seconds`; silences of more than a second between stretches are removed, and times are mapped back afterwards.
`read` yields blocks of windows as samples arrive from the decoder.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.speech.audio import Recording, Samples
from models.speech.decoder import RATE

GAP = RATE
"""Silences of up to this many samples are kept, so that speech keeps its rhythm."""

Stretch = tuple[int, int]
"""First sample, and one past the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch, in seconds. `at`: its start in the window, `start`: in the recording."""

    at: float
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class Window:
    """The sound that the network processes at once."""

    audio: Samples
    pieces: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        return len(self.audio) / RATE

    @property
    def end(self) -> float:
        """The window's end in the recording."""
        return self.pieces[-1].start + self.pieces[-1].length

    def span(self, start: float, end: float, reach: float = math.inf) -> tuple[float, float]:
        """Map the start and end of a word, or with a reach of a segment, to the recording.

        Only `reach` seconds or less beyond a seam are dropped, so that they do not extend over the silence that was
        removed there. A word is in one stretch: the one that contains more of it.
        """
        first, last = self._piece(start), self._piece(end, end=True)
        while first < last:
            before, after = self.pieces[first + 1].at - start, end - self.pieces[last].at
            if min(before, after) > reach:
                break
            if before < after:
                first += 1
                start = self.pieces[first].at
            else:
                end = self.pieces[last].at
                last -= 1
        begun = self._mapped(first, start)
        return begun, max(begun, self._mapped(max(first, last), end))

    def _piece(self, inside: float, *, end: bool = False) -> int:
        """Return the number of the stretch that contains a time. At a seam, an `end` belongs to the earlier one."""
        found = 0
        for number, piece in enumerate(self.pieces):
            if piece.at < inside or (piece.at == inside and not end):
                found = number
        return found

    def _mapped(self, number: int, inside: float) -> float:
        piece = self.pieces[number]
        return piece.start + min(max(inside - piece.at, 0.0), piece.length)


def join_stretches(stretches: Sequence[Stretch], window: int) -> list[Stretch]:
    """Join stretches with gaps of up to a second, up to `window` samples."""
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

    Copies at most one window of sound, whatever the length of the recording.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._parts: list[Samples] = []
        self._pieces: list[Piece] = []
        self._count = 0

    def add(self, audio: Samples, start: int) -> Window | None:
        """Add a stretch that starts at sample `start`. Returns the previous window if it had no room for it."""
        full = self.flush() if self._count + len(audio) > self._window else None
        self._pieces.append(Piece(self._count / RATE, start / RATE, len(audio) / RATE))
        self._parts.append(audio.copy())
        self._count += len(audio)
        return full

    def flush(self) -> Window | None:
        """Return the current window, or None if it is empty."""
        if not self._parts:
            return None
        window = Window(np.concatenate(self._parts), tuple(self._pieces))
        self._parts, self._pieces, self._count = [], [], 0
        return window


FRAME = 512
"""Samples of one probability."""
CONTEXT = 64
"""Samples of the previous frame that are part of the model's input."""
PAD = 2 * RATE // 5
"""Samples kept before and after speech, or half of the silence to the next speech."""
PAUSE = 5
"""Frames of silence that end speech (160 ms)."""
BREATH = 4
"""Frames of silence at which overlong speech is cut (128 ms)."""
FALL = 0.15
"""Speech continues while the probability is at least the threshold minus this."""

Probabilities = npt.NDArray[np.float32]


class VoiceDetector:
    """Finds a recording's stretches of speech, including silences of up to a second.

    Keeps the samples of the last stretch, at most a window and a few seconds, or a second of silence.
    """

    def __init__(self, threshold: float, window: int) -> None:
        self._threshold, self._window = threshold, window
        self._model = _Model()
        self._audio: Samples = np.zeros(0, dtype=np.float32)
        self._begin = 0
        """Position of its first sample in the recording."""
        self._probabilities: Probabilities = np.zeros(0, dtype=np.float32)
        self._frame = 0
        """Position of the first probability in frames, which is at the start of speech or in silence."""

    def add(self, part: Samples, *, final: bool) -> list[tuple[int, Samples]]:
        """Add samples. Returns finished stretches in order, with the position of their first sample."""
        self._audio = np.concatenate([self._audio, part])
        self._probabilities = np.concatenate([self._probabilities, self._model.hear(part, final=final)])
        begin, count = self._begin, self._begin + len(self._audio)
        frames = self._frame + len(self._probabilities)
        voiced = speeches(self._probabilities, self._threshold, longest_speech(self._window))
        placed = [(self._frame + start, self._frame + end) for start, end in voiced]
        stretches = join_stretches(padded(placed, begin, count), self._window)
        done, frame = max(begin, count - RATE), frames
        if stretches and not final:
            # Anything later is too far away to be joined, or to share the silence.
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
    """Return the frames of speech that fit into a window, including its padding."""
    return (window - 2 * PAD - FRAME) // FRAME


def speeches(probabilities: Probabilities, threshold: float, longest: int) -> Iterator[Stretch]:
    """Yield speech as first frame and end. The last may end with the probabilities.

    Speech starts at a frame of at least `threshold`, and ends before PAUSE frames below it that start with a much lower
    one. Speech of more than `longest` frames is cut at its last silence of BREATH frames, or else at that length.
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
    """Return the end of speech that starts at `start`, and the frame at which to search for the next."""
    quiet = breath = 0
    """Starts of the current silence, and of the last one long enough to cut at; 0 if none."""
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
    """Convert speech to samples, with PAD or half of the silence around it."""
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
    """Silero's network with its state, which computes probabilities frame by frame."""

    def __init__(self) -> None:
        from faster_whisper.vad import get_vad_model

        self._session: Any = get_vad_model().session
        self._state = np.zeros((1, 1, 128), dtype=np.float32), np.zeros((1, 1, 128), dtype=np.float32)
        self._context: Samples = np.zeros(CONTEXT, dtype=np.float32)
        self._rest: Samples = np.zeros(0, dtype=np.float32)

    def hear(self, audio: Samples, *, final: bool) -> Probabilities:
        """Return the probabilities of complete frames; the last one is padded with silence."""
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
"""Samples of one search for speech, which takes 24 MB more (five minutes: 133 MB), or of a block without detection."""
BLOCK = 300 * RATE
"""Samples after which windows are passed on even if they are few. The first are passed on after PART, so that the first
segments of a long recording come soon."""
WINDOWS = 10
"""Approximately the most windows of a block: with 30 s each, 19 MB of samples and 10 MB of features."""


@dataclass(frozen=True, slots=True)
class Block:
    """Windows with speech, or without detection all samples from `offset` on."""

    audio: Samples
    offset: int
    final: bool
    windows: list[Window]


def read(recording: Recording, threshold: float | None, window: int) -> Iterator[Block]:
    """Yield blocks of a recording, with windows if there is a threshold.

    The last one is `final`, and may be empty. Blocks while it waits for the decoder and searches for speech.
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
    """Yield PART samples at a time, the position of the first, and whether they are the last (maybe none)."""
    blocks: list[Samples] = []
    count = offset = 0
    for samples in recording:
        blocks.append(samples)
        count += len(samples)
        if count >= PART:
            yield np.concatenate(blocks), offset, False
            offset += count
            blocks, count = [], 0
    yield np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32), offset, True
