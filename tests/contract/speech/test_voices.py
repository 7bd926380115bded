"""Voice detection finds the same speech however a recording is cut into parts, and buffers little."""

import random
import wave
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.speech import windows as transcribe_voices
from models.speech.audio import Samples
from models.speech.decoder import RATE
from models.speech.windows import FRAME, GAP, Stretch, VoiceDetector, join_stretches, longest_speech
from tests.contract.speech.fixtures import noise, silence, voice

SAMPLES = Path(__file__).parents[3] / "models" / "starter" / "pack" / "samples"
THRESHOLD = 0.5
WINDOW = 30 * RATE
WINDOWS = [RATE, 5 * RATE, 12 * RATE, WINDOW]


def detected(audio: Samples, cuts: Sequence[int] = (), window: int = WINDOW) -> list[Stretch]:
    """Return the stretches of speech in a recording that arrives in parts.

    Check that their sound is the recording's, and that no more is buffered than necessary.
    """
    voices, stretches, begin = VoiceDetector(THRESHOLD, window), list[Stretch](), 0
    for end in [*cuts, len(audio)]:
        for start, part in voices.add(audio[begin:end], final=end == len(audio)):
            np.testing.assert_array_equal(part, audio[start : start + len(part)])
            stretches.append((start, start + len(part)))
        assert len(voices._audio) <= window + 2 * GAP
        begin = end
    return stretches


@pytest.fixture(scope="module")
def talk() -> Samples:
    """Three minutes of sentences, pauses of all lengths, and a little noise."""
    rng, parts = random.Random(4), list[Samples]()
    sentences = []
    for file in sorted(SAMPLES.glob("*.wav")):
        with wave.open(str(file)) as sound:
            sentences.append(np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768)
    while sum(map(len, parts)) < 180 * RATE:
        parts += [rng.choice(sentences), silence(rng.choice([0.1, 0.3, 0.7, 1.2, 1.9, 4.0]))]
    audio = np.concatenate(parts)
    audio += 0.02 * np.resize(noise(7), len(audio))
    return audio


def cuts_of(audio: Samples, every: float) -> list[int]:
    return list(range(int(every * RATE), len(audio), int(every * RATE)))


@pytest.mark.real
@pytest.mark.parametrize("every", [0.9, 7.0, 20.0, 60.0])
def test_parts_of_equal_length_change_nothing(talk: Samples, every: float) -> None:
    whole = detected(talk)
    assert len(whole) > 10
    assert detected(talk, cuts_of(talk, every)) == whole


@pytest.mark.real
def test_parts_of_random_lengths_change_nothing(talk: Samples) -> None:
    rng, whole = random.Random(1), detected(talk)
    for count in (1, 5, 40):
        assert detected(talk, sorted(rng.sample(range(len(talk)), count))) == whole


@pytest.mark.real
@pytest.mark.parametrize("window", WINDOWS)
def test_speech_without_a_pause_is_cut_into_windows(window: int) -> None:
    """At the same places, however the recording is cut into parts."""
    audio = np.concatenate([silence(3), voice(75), silence(3)])
    whole = detected(audio, window=window)
    assert len(whole) >= 75 * RATE // window
    assert all(end - start <= window for start, end in whole)
    for every in (5.0, 31.0):
        assert detected(audio, cuts_of(audio, every), window) == whole


@pytest.mark.real
def test_one_pass_finds_what_the_library_finds(talk: Samples) -> None:
    from faster_whisper.vad import VadOptions, get_speech_timestamps

    options = VadOptions(threshold=THRESHOLD, max_speech_duration_s=30.0, min_silence_duration_ms=160)
    theirs = [(part["start"], part["end"]) for part in get_speech_timestamps(talk, options)]
    assert detected(talk) == join_stretches(theirs, WINDOW)


@pytest.mark.real
@pytest.mark.parametrize("after", [silence(30), noise(30) / 10])
def test_a_word_before_a_long_silence_is_returned_during_the_silence(talk: Samples, after: Samples) -> None:
    """The silence is not buffered."""
    [(start, end), *_] = detected(talk)
    voices = VoiceDetector(THRESHOLD, WINDOW)
    assert voices.add(talk[: end - RATE // 2], final=False) == []
    [(begin, _)] = voices.add(after, final=False)
    assert begin == start
    for _ in range(4):
        assert voices.add(after, final=False) == []
        assert len(voices._audio) == RATE
    assert voices.add(silence(0), final=True) == []


def test_an_empty_recording_has_no_speech() -> None:
    assert detected(silence(0)) == []


RUNS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.3, 0.4, 0.6, 1.0]), st.integers(1, 60) | st.integers(1, 2 * longest_speech(WINDOW))
    ),
    max_size=12,
)


class _Scripted:
    """Returns these probabilities, one for each FRAME of audio."""

    def __init__(self, probabilities: list[float]) -> None:
        self._left, self._rest = probabilities, 0

    def hear(self, audio: Samples, *, final: bool) -> Samples:
        count, self._rest = divmod(self._rest + len(audio), FRAME)
        probabilities, self._left = self._left[:count], self._left[count:]
        return np.array(probabilities, dtype=np.float32)


@given(RUNS, st.lists(st.floats(0, 1), max_size=12), st.sampled_from(WINDOWS))
def test_any_sequence_of_probabilities_follows_the_rules(
    runs: list[tuple[float, int]], places: list[float], window: int
) -> None:
    probabilities = [level for level, length in runs for _ in range(length)]
    audio = np.zeros(len(probabilities) * FRAME, dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcribe_voices, "_Model", lambda: _Scripted(probabilities))
        whole = detected(audio, window=window)
        assert detected(audio, sorted(int(place * len(audio)) for place in places), window) == whole
    assert all(0 < end - start <= window for start, end in whole)
    assert all(before[1] <= after[0] for before, after in pairwise(whole))
    inside = np.zeros(len(audio) + 1, dtype=bool)
    for start, end in whole:
        inside[start:end] = True
    voiced = [place * FRAME for place, level in enumerate(probabilities) if level >= THRESHOLD]
    assert all(inside[place] for place in voiced)
