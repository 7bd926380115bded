"""Utterances (a sentence spoken by a voice, with word times and phoneme labels) and their shards.

Voices and sentences are split into training and held-out parts here and in ``language``.
"""

from __future__ import annotations

import functools
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starter_training.speech import language
from starter_training.speech.synthesis import espeak

PEAK = 0.7
"""Largest amplitude of a sentence, of 1.0."""
HOP = 320
"""Samples per encoder position (20 ms at 16 kHz). Utterances are padded to a multiple of it."""
PHONEME_CLASSES = 128
"""Size of the auxiliary phoneme target; 0 is silence."""

ACCENTS = ["en", "en-us", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc"]
HELD_OUT_ACCENTS = [*ACCENTS, "en-gb-scotland"]
VARIANTS = [
    "m1", "m2", "m3", "m4", "m6", "m7", "m8", "f1", "f2", "f4", "f5", "Alex", "Alicia", "Andrea", "Andy", "Annie",
    "Denis", "Diogo", "Gene", "Hugo", "Jacky", "Lee", "Marco", "Mario", "Michael", "Mike", "adam", "anika", "antonio",
    "belinda", "benjamin", "boris", "david", "ed", "edward2", "grandma", "grandpa", "iven", "kaukovalta", "linda",
    "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul", "pedro", "quincy", "rob", "robert", "sandro",
    "shelby", "steph2", "travis", "victor", "zac",
]  # fmt: skip
HELD_OUT_VARIANTS = ["m5", "f3", "steph", "edward", "iven2", "caleb"]


@dataclass(frozen=True)
class Voice:
    """A speaker: accent, variant, words a minute, pitch and its range (both 0 to 99)."""

    accent: str
    variant: str
    speed: int
    pitch: int
    pitch_range: int

    @property
    def name(self) -> str:
        """The name in espeak-ng."""
        return f"{self.accent}+{self.variant}"


@dataclass(frozen=True)
class Utterance:
    """A spoken sentence.

    Attributes:
        wave: int16 at 16 kHz, a multiple of HOP long.
        spans: start and end of each word in seconds.
        phonemes: uint8 class for every 20 ms (0 is silence).
    """

    text: str
    voice: Voice
    wave: NDArray[np.int16]
    spans: list[tuple[float, float]]
    phonemes: NDArray[np.uint8]


def random_voice(rng: random.Random, *, held: bool) -> Voice:
    """Draw a voice from one side of the split."""
    accents, variants = (HELD_OUT_ACCENTS, HELD_OUT_VARIANTS) if held else (ACCENTS, VARIANTS)
    return Voice(
        rng.choice(accents),
        rng.choice(variants),
        rng.randint(115, 215),
        rng.randint(15, 85),
        rng.randint(25, 75),
    )


@functools.cache
def _phoneme_class(name: str) -> int:
    """Return the hash of a mnemonic as a class from 1 up. Collisions matter little for an auxiliary target."""
    return 0 if name.startswith("_") else 1 + zlib.crc32(name.encode()) % (PHONEME_CLASSES - 1)


def word_spans(text: str, speech: espeak.Speech) -> list[tuple[float, float]]:
    """Return start and end in seconds of each word.

    If espeak-ng reports no start for a word (it merges 'on the'), the time of the group is divided by the number of
    letters. The last word ends where the final pause begins.
    """
    words = text.split()
    length = len(speech.wave) / espeak.SAMPLE_RATE
    index_of: dict[int, int] = {}
    position = 0
    for index, word in enumerate(words):
        index_of[position] = index
        position += len(word) + 1
    starts: list[float | None] = [None] * len(words)
    for place, start in speech.words:
        if place in index_of:
            starts[index_of[place]] = start
    starts[0] = starts[0] or 0.0
    pauses = [start for name, start in speech.phonemes[-2:] if name.startswith("_")]
    finish = min([*pauses, length])
    spans: list[tuple[float, float]] = []
    first = 0
    while first < len(words):
        after = first + 1
        while after < len(words) and starts[after] is None:
            after += 1
        begin = starts[first] or 0.0
        end = finish if after == len(words) else (starts[after] or 0.0)
        letters = sum(len(word) for word in words[first:after])
        for word in words[first:after]:
            share = (end - begin) * len(word) / letters
            start = spans[-1][1] if spans and len(spans) > first else (starts[first] or 0.0)
            spans.append((start, start + share))
        first = after
    return spans


def speak(text: str, voice: Voice) -> Utterance:
    """Synthesise one sentence, with a peak amplitude of PEAK."""
    speech = espeak.synthesize(text, voice.name, voice.speed, voice.pitch, voice.pitch_range)
    size = -(-len(speech.wave) // HOP) * HOP
    wave = np.zeros(size, np.int16)
    scale = PEAK * 32767 / max(1e-3, float(np.abs(speech.wave).max()))
    wave[: len(speech.wave)] = (speech.wave * scale).astype(np.int16)
    phonemes = np.zeros(size // HOP, np.uint8)
    for name, start in speech.phonemes:
        phonemes[round(start * espeak.SAMPLE_RATE / HOP) :] = _phoneme_class(name)
    return Utterance(text, voice, wave, word_spans(text, speech), phonemes)


def random_utterance(rng: random.Random, *, held_sentence: bool, held_voice: bool) -> Utterance:
    """Draw a sentence and a voice, each from the requested side of its split."""
    text = language.sentences(rng, 1, held=held_sentence)[0]
    return speak(text, random_voice(rng, held=held_voice))


@dataclass(frozen=True)
class Shard:
    """Many utterances in two flat arrays.

    Attributes:
        wave: int16 [samples].
        phonemes: uint8 [samples / HOP].
        items: (text, first sample, samples, word spans) of each utterance.
    """

    wave: NDArray[np.int16]
    phonemes: NDArray[np.uint8]
    items: list[tuple[str, int, int, list[tuple[float, float]]]]


def make_shard(utterances: list[Utterance]) -> Shard:
    """Join utterances into flat arrays."""
    items: list[tuple[str, int, int, list[tuple[float, float]]]] = []
    offset = 0
    for utterance in utterances:
        items.append((utterance.text, offset, len(utterance.wave), utterance.spans))
        offset += len(utterance.wave)
    return Shard(
        np.concatenate([utterance.wave for utterance in utterances]),
        np.concatenate([utterance.phonemes for utterance in utterances]),
        items,
    )


def save_wave(shard: Shard, path: Path) -> None:
    """Write the arrays of a shard (the items travel through a queue)."""
    np.savez(path, wave=shard.wave, phonemes=shard.phonemes)
