"""The shipped speech model reaches its figures on held-out speech, and transcribes its samples."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from starter_training import cards, figures
from starter_training.speech import evaluate, samples
from starter_training.speech.synthesis import espeak

pytestmark = pytest.mark.real
NAME = "starter-speech"
FOLDER, SAMPLES = figures.PACK / NAME, figures.PACK / "samples"
CLIPS = 16


@pytest.fixture(scope="module")
def section() -> figures.Section:
    return figures.load()[NAME]


@pytest.fixture(scope="module")
def listen() -> evaluate.Transcriber:
    return evaluate.served(FOLDER, evaluate.shipped_window())


def _has_espeak() -> bool:
    try:
        espeak.synthesize("one", "en")
    except espeak.EspeakError:
        return False
    return True


needs_espeak = pytest.mark.skipif(not _has_espeak(), reason="espeak-ng is not installed: no new speech can be made")


def test_the_weights_are_those_that_were_measured(section: figures.Section) -> None:
    assert figures.changed(figures.PACK, section) == []
    assert figures.changed(figures.PACK, {"files": dict.fromkeys(section["files"], "0" * 64)})


@needs_espeak
def test_its_word_error_rate_reaches_its_figure(section: figures.Section, listen: evaluate.Transcriber) -> None:
    """Errors within a sentence depend on each other, so the spread is that of one draw per clip."""
    expected = section["measured"]["sentences"]
    seen = evaluate.wer(listen, evaluate.heldout_sentences(CLIPS))
    assert abs(seen - expected) <= figures.spread(min(1.0, expected), CLIPS)


@needs_espeak
def test_the_texts_of_other_clips_fail(listen: evaluate.Transcriber) -> None:
    """The check above is not blind: with the next clip's text, nearly every word is wrong."""
    clips = evaluate.heldout_sentences(CLIPS)
    moved = [
        evaluate.Clip(clip.name, clip.wave, other.text)
        for clip, other in zip(clips, clips[1:] + clips[:1], strict=True)
    ]
    assert evaluate.wer(listen, moved) > 0.7


@pytest.mark.parametrize("name", sorted(samples.TEXTS))
def test_a_sample_is_transcribed_to_its_text(section: figures.Section, listen: evaluate.Transcriber, name: str) -> None:
    path: Path = SAMPLES / f"{name}.wav"
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    text = path.with_suffix(".txt").read_text().strip()
    chosen = section["measured"]["samples"][name]
    assert text == chosen["text"]
    assert samples.exact([listen], sound, text) == bool(chosen["tried"])


def test_a_sample_is_transcribed_in_windows_of_30_seconds_too() -> None:
    with wave.open(str(SAMPLES / "calendar.wav"), "rb") as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    text = (SAMPLES / "calendar.txt").read_text().strip()
    assert samples.exact([evaluate.served(FOLDER, evaluate.WHISPERS)], sound, text)


def test_silence_has_no_text(listen: evaluate.Transcriber) -> None:
    assert listen(np.zeros(3 * 16000, np.float32)) == []


def test_the_card_is_written_from_the_figures() -> None:
    assert (FOLDER / "CARD.md").read_text() == cards.card(NAME, figures.PACK)
