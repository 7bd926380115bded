"""Measures a converted starter-speech on held-out synthesised speech, with the server's own parts and the windows of
the shipped recipe, and with faster-whisper alone.

``python -m starter_training.speech.evaluate MODEL_FOLDER [--count N] [--window SECONDS PADDED] [--figures PACK]``.
The sets are deterministic: with the same version of espeak-ng, a count always gives the same clips.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.speech.decoder import RATE
from models.speech.engine import VAD_THRESHOLD
from models.speech.model import SpeechModel, WindowRequest
from models.speech.windows import PAD, Packer, VoiceDetector
from registry.base.processor import cores
from registry.recipes.definition import WindowSpec
from registry.recipes.loading import load_recipes
from starter_training import figures
from starter_training.speech import language, scoring
from starter_training.speech.synthesis import corpus

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

BAD_FIT_SECONDS = 0.5
RECIPE = Path(__file__).parents[3] / "recipes" / "starter" / "starter-speech.yaml"
WHISPERS = WindowSpec()
"""Whisper's own windows: 30 s."""


@dataclass(frozen=True)
class Clip:
    """A recording: float32 samples at 16 kHz, its words, and (start, end) of each utterance in seconds."""

    name: str
    wave: NDArray[np.float32]
    text: str
    segments: tuple[tuple[float, float], ...] = ()


def _clip(name: str, utterances: Sequence[corpus.Utterance], rng: random.Random) -> Clip:
    """Join utterances with 0.5 to 1.5 s between them."""
    pieces: list[NDArray[np.float32]] = [np.zeros(RATE // 5, np.float32)]
    segments: list[tuple[float, float]] = []
    for utterance in utterances:
        at = sum(len(piece) for piece in pieces) / RATE
        segments.append((at + utterance.spans[0][0], at + utterance.spans[-1][1]))
        pieces.append((utterance.wave / 32768).astype(np.float32))
        if utterance is not utterances[-1]:
            pieces.append(np.zeros(int(rng.uniform(0.5, 1.5) * RATE), np.float32))
    text = " ".join(utterance.text for utterance in utterances)
    return Clip(name, np.concatenate(pieces), text, tuple(segments))


def _singles(name: str, count: int, *, held_voice: bool) -> list[Clip]:
    rng = random.Random(f"evaluation/{name}")
    return [
        _clip(f"{name}-{index}", [corpus.random_utterance(rng, held_sentence=True, held_voice=held_voice)], rng)
        for index in range(count)
    ]


def heldout_sentences(count: int) -> list[Clip]:
    """Return sentences of no training, in voices of the training."""
    return _singles("sentences", count, held_voice=False)


def heldout_voices(count: int) -> list[Clip]:
    """Return sentences and voices of no training."""
    return _singles("voices", count, held_voice=True)


def recordings(count: int) -> list[Clip]:
    """Return recordings of 2 to 12 held-out sentences in one trained voice each, some longer than 30 s."""
    rng = random.Random("evaluation/recordings")
    clips: list[Clip] = []
    for index in range(count):
        voice = corpus.random_voice(rng, held=False)
        texts = language.sentences(rng, rng.randint(2, 12), held=True)
        clips.append(_clip(f"recordings-{index}", [corpus.speak(text, voice) for text in texts], rng))
    return clips


def without_speech() -> list[Clip]:
    """Return silence, noise of three colours and levels, tones, a sweep and beeps, of 4 s each and one of 35 s."""
    rng = np.random.default_rng(7)
    time_axis = np.arange(4 * RATE) / RATE
    white = rng.normal(size=4 * RATE)
    brown = np.cumsum(white - white.mean())
    pink = np.fft.irfft(np.fft.rfft(white) / np.sqrt(np.arange(1, 2 * RATE + 2)), 4 * RATE)
    sounds: dict[str, NDArray[np.float64]] = {
        "silence": np.zeros(4 * RATE),
        "long-silence": np.zeros(35 * RATE),
        "sweep": 0.3 * np.sin(2 * np.pi * (100 + 400 * time_axis) * time_axis),
        "beeps": 0.3 * np.sin(2 * np.pi * 880 * time_axis) * (np.sin(2 * np.pi * 1.5 * time_axis) > 0),
    }
    for name, noise in (("white", white), ("pink", pink), ("brown", brown)):
        for level in (0.3, 0.05, 0.005):
            sounds[f"{name}-{level}"] = noise / np.abs(noise).max() * level
    for pitch in (50, 440, 1000, 3000):
        sounds[f"tone-{pitch}"] = 0.4 * np.sin(2 * np.pi * pitch * time_axis)
    return [Clip(name, wave.astype(np.float32), "") for name, wave in sounds.items()]


def load(folder: Path) -> WhisperModel:
    """Load the converted model on the CPU in int8."""
    from faster_whisper import WhisperModel

    return WhisperModel(str(folder), device="cpu", compute_type="int8")


Transcriber = Callable[[NDArray[np.float32]], list[tuple[str, float, float]]]


def shipped_window() -> WindowSpec:
    """Return the windows of the shipped recipe."""
    return load_recipes(RECIPE)[0].window


def served(folder: Path, window: WindowSpec) -> Transcriber:
    """Transcribe with the server's own parts: voice detection, windows, five beams. Segments are (text, start, end)."""
    recipe = load_recipes(RECIPE)[0].model_copy(update={"window": window})
    model = SpeechModel(recipe, folder, "cpu", cores())

    def run(wave: NDArray[np.float32]) -> list[tuple[str, float, float]]:
        voices, packer = VoiceDetector(VAD_THRESHOLD, window.seconds * RATE), Packer(window.seconds * RATE)
        found = [packer.add(sound, start) for start, sound in voices.add(wave, final=True)]
        windows = [one for one in [*found, packer.flush()] if one is not None]
        received = model.run([WindowRequest(model.features(window.audio), window.seconds) for window in windows])
        return [
            (text, *one.span(stated.start, stated.end, PAD / RATE))
            for one, answer in zip(windows, received, strict=True)
            for stated, text in zip(answer.segments, answer.texts, strict=True)
            if text.strip() and not answer.silent
        ]

    return run


def sequential(model: WhisperModel) -> Transcriber:
    """Transcribe with faster-whisper's own loop, without voice detection. Segments are (text, start, end)."""

    def run(wave: NDArray[np.float32]) -> list[tuple[str, float, float]]:
        segments, _ = model.transcribe(
            wave, language="en", beam_size=1, temperature=0.0, vad_filter=False, without_timestamps=False
        )
        return [(segment.text, segment.start, segment.end) for segment in segments]

    return run


def batched(model: WhisperModel, beams: int = 1, window: int = 30) -> Transcriber:
    """Transcribe with faster-whisper's batched pipeline and its voice detector.

    window: most seconds of a window, which is always padded to 30.
    """
    from faster_whisper import BatchedInferencePipeline

    pipeline = BatchedInferencePipeline(model)

    def run(wave: NDArray[np.float32]) -> list[tuple[str, float, float]]:
        segments, _ = pipeline.transcribe(
            wave, language="en", beam_size=beams, temperature=0.0, vad_filter=True, without_timestamps=False,
            chunk_length=window,
        )  # fmt: skip
        return [(segment.text, segment.start, segment.end) for segment in segments]

    return run


def _joined(segments: list[tuple[str, float, float]]) -> str:
    return " ".join(" ".join(text for text, _, _ in segments).split())


def wer(transcribe: Transcriber, clips: Sequence[Clip]) -> float:
    """Return the word error rate over the clips."""
    return scoring.word_error_rate([(clip.text, _joined(transcribe(clip.wave))) for clip in clips])


def segment_fit(transcribe: Transcriber, clips: Sequence[Clip]) -> float:
    """Return the share of spoken utterances with a segment that starts within half a second of theirs."""
    hits = total = 0
    for clip in clips:
        starts = [start for _, start, _ in transcribe(clip.wave)]
        total += len(clip.segments)
        hits += sum(any(abs(start - begin) < BAD_FIT_SECONDS for start in starts) for begin, _ in clip.segments)
    return hits / max(1, total)


def invented(transcribe: Transcriber) -> list[str]:
    """Return the names and texts of sounds without speech that were transcribed as text."""
    received = [(clip.name, _joined(transcribe(clip.wave))) for clip in without_speech()]
    return [f"{name}: {text}" for name, text in received if text]


def evaluate(folder: Path, count: int, window: WindowSpec) -> dict[str, object]:
    """Return all scores of a converted model, with ``count`` clips per set (a quarter as many recordings)."""
    began = time.monotonic()
    model, hear, whole = load(folder), served(folder, window), served(folder, WHISPERS)
    plain, pipeline = sequential(model), batched(model, window=window.seconds)
    long = recordings(max(2, count // 4))
    return {
        "count": count,
        "window": window.model_dump(),
        "trained_voices": len(corpus.ACCENTS) * len(corpus.VARIANTS),
        "without_speech": len(without_speech()),
        "date": datetime.now(UTC).date().isoformat(),
        "sentences": round(wer(hear, heldout_sentences(count)), 4),
        "voices": round(wer(hear, heldout_voices(count)), 4),
        "recordings": round(wer(hear, long), 4),
        "recordings_whole": round(wer(whole, long), 4),
        "recordings_pipeline": round(wer(pipeline, long), 4),
        "recordings_segment_fit": round(segment_fit(hear, long), 4),
        "recordings_segment_fit_whole": round(segment_fit(whole, long), 4),
        "invented": invented(hear),
        "invented_plain": invented(plain),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Score a converted starter-speech.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--window",
        type=int,
        nargs=2,
        metavar=("SECONDS", "PADDED"),
        help="instead of the shipped recipe's windows",
    )
    parser.add_argument("--figures", type=Path, help="pack into whose figures.json to write the result")
    options = parser.parse_args()
    window = WindowSpec(seconds=options.window[0], padded=options.window[1]) if options.window else shipped_window()
    measured = evaluate(options.folder, options.count, window)
    print(json.dumps(measured, indent=2))
    if options.figures:
        figures.update(options.figures, "starter-speech", measured=measured)


if __name__ == "__main__":
    main()
