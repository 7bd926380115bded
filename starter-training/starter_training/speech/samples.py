"""The three recordings that ship with the pack: ``python -m starter_training.speech.samples OUT [--model FOLDER]``.

With a model, each is the first of some dozens of candidates that the model transcribes exactly. So the samples show the
model at its best; the error rates show its average.
"""

from __future__ import annotations

import argparse
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starter_training import figures
from starter_training.speech import evaluate
from starter_training.speech.synthesis import corpus, espeak

TEXTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "kitchen-light": (
        ("please turn on the light in the kitchen",), ("turn on the light in the kitchen",),
        ("turn off the lamp in the kitchen",), ("turn on the bright light",), ("switch off the light",),
    ),
    "timer": (
        ("set a timer for twenty five minutes", "play quiet music in the garden"),
        ("set a timer for twenty five minutes",), ("start a timer for ten minutes",),
        ("stop a timer for thirty minutes",), ("set a timer for nine hours",),
    ),
    "calendar": (
        (
            "meeting on january seventh at eleven", "what is the weather tomorrow",
            "remind me to clean the oven on friday",
        ),
        ("meeting on january seventh at eleven",), ("what is the weather on friday",), ("monday january first",),
        ("march has thirty one days",), ("friday october tenth",),
    ),
}  # fmt: skip
"""Possible texts of each sample, as sentences, the preferred one first."""
SPEEDS, PITCHES, VARIANTS = (150, 135, 170), (50, 40, 60), ("m3", "f2", "m1", "f4")


def voices() -> list[corpus.Voice]:
    """Return the voices to try, in order."""
    return [
        corpus.Voice("en-us", variant, speed, pitch, 50)
        for speed in SPEEDS
        for pitch in PITCHES
        for variant in VARIANTS
    ]


def render(voice: corpus.Voice, sentences: tuple[str, ...]) -> NDArray[np.int16]:
    """Return a sample as int16 at 16 kHz, with 0.2 s of silence before and 0.6 s between sentences."""
    pieces = [np.zeros(espeak.SAMPLE_RATE // 5, np.int16)]
    for text in sentences:
        pieces += [corpus.speak(text, voice).wave, np.zeros(espeak.SAMPLE_RATE * 6 // 10, np.int16)]
    return np.concatenate(pieces[:-1])


def exact(transcribers: Sequence[evaluate.Transcriber], wave: NDArray[np.int16], text: str) -> bool:
    """Return whether every transcriber returns exactly `text`."""
    audio = (wave / 32768).astype(np.float32)
    return all(" ".join(" ".join(part for part, _, _ in run(audio)).split()) == text for run in transcribers)


def choose(
    transcribers: Sequence[evaluate.Transcriber], name: str
) -> tuple[corpus.Voice, tuple[str, ...], NDArray[np.int16], int]:
    """Return the first candidate that is transcribed exactly, or else the first of all, and how many were tried.

    Without transcribers it is the preferred text in the first voice.
    """
    tried = 0
    for sentences in TEXTS[name]:
        for voice in voices():
            wave, tried = render(voice, sentences), tried + 1
            if exact(transcribers, wave, " ".join(sentences)):
                return voice, sentences, wave, tried
    first, wish = voices()[0], TEXTS[name][0]
    return first, wish, render(first, wish), 0


def write(wave_path: Path, samples: NDArray[np.int16], text: str) -> None:
    """Write a WAV file (mono, 16 kHz, 16 bits), and a text file with its words beside it."""
    wave_path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(wave_path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(espeak.SAMPLE_RATE)
        file.writeframes(samples.tobytes())
    wave_path.with_suffix(".txt").write_text(text + "\n")


def main() -> None:
    """Run the command line. With a model, exits with 3 unless it transcribes every sample exactly."""
    parser = argparse.ArgumentParser(description="Make the sample recordings.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="choose samples that this model transcribes exactly")
    parser.add_argument("--figures", type=Path, help="pack into whose figures.json to write the choice")
    options = parser.parse_args()
    transcribers: list[evaluate.Transcriber] = []
    if options.model is not None:
        model = evaluate.load(options.model)
        transcribers = [
            evaluate.served(options.model, evaluate.shipped_window()),
            evaluate.sequential(model), evaluate.batched(model), evaluate.batched(model, beams=5),
        ]  # fmt: skip
    found: dict[str, dict[str, object]] = {}
    for name in TEXTS:
        voice, sentences, samples, tried = choose(transcribers, name)
        write(options.out / f"{name}.wav", samples, " ".join(sentences))
        found[name] = {"text": " ".join(sentences), "voice": voice.name, "speed": voice.speed, "pitch": voice.pitch,
                       "tried": tried}  # fmt: skip
        print(f"{name}: {f'exact, candidate {tried}' if tried else 'NOT exact, no candidate is'}: {found[name]}")
    if options.figures:
        section = figures.load(options.figures)["starter-speech"]
        figures.update(options.figures, "starter-speech", measured={**section["measured"], "samples": found})
    raise SystemExit(0 if all(one["tried"] for one in found.values()) else figures.MISSED)


if __name__ == "__main__":
    main()
