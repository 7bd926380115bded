"""Voice detection over a recording that comes in parts, as if it had come in one: where parts end changes nothing.

The Silero model that comes with faster-whisper gives the probability of a voice for each frame of 32 ms. It remembers
what it heard, so its state goes on from part to part. Speech is then found in the probabilities by the rules that
Silero's own script has; how it goes on is decided by what follows the beginning of a stretch, never by what came
before, so that the last stretch, which may go on in the next part, is looked at again from its beginning.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from models.speech.windows import GAP, RATE, Samples, Stretch, join_stretches

FRAME = 512
"""Samples of which the model tells one probability."""
CONTEXT = 64
"""Samples of the frame before, which it hears too."""
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
    """One recording's stretches with a voice, of at most `window` samples, with silences of up to a second inside.

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
    """Frames of one speech that fits into a window of so many samples, with what is kept around it."""
    return (window - 2 * PAD - FRAME) // FRAME


def speeches(probabilities: Probabilities, threshold: float, longest: int) -> Iterator[Stretch]:
    """Speeches as their first frame, and the one after the last. The last may end with the probabilities.

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
    """Where the speech that begins at `start` ends, and where to look for the next one."""
    quiet = breath = 0
    """Where a silence began that lasts, and the last one that was long enough to cut at. 0: none."""
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
    """Speeches in frames as samples from `begin` to `count`, with PAD of what is around them, or half of a silence."""
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
        """Those of the frames that are whole now; at the end what is left becomes one with silence."""
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
