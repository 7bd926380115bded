"""Splitting recordings into windows and windows into segments, without a model."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.speech import windows
from models.speech.audio import Samples
from models.speech.decoder import RATE
from models.speech.model import APPEND, PREPEND
from models.speech.segments import TimedSegment, place_words, shorten_words, split
from models.speech.windows import Packer, Piece, Window, join_stretches

STRETCHES = st.lists(
    st.tuples(st.integers(0, 20 * RATE), st.integers(1, 40 * RATE)), min_size=0, max_size=15
).map(lambda parts: _laid_out(parts))  # fmt: skip


def _laid_out(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result, place = [], 0
    for gap, length in parts:
        result.append((place + gap, place + gap + length))
        place += gap + length
    return result


@given(STRETCHES, st.integers(1, 30).map(lambda seconds: seconds * RATE))
def test_windows_contain_all_speech_once_with_its_times(stretches: list[tuple[int, int]], most: int) -> None:
    audio = np.arange(stretches[-1][1] if stretches else 0, dtype=np.float32)
    packer, windows = Packer(most), []
    expected = join_stretches(stretches, most)
    for start, stop in expected:
        windows += [window for window in [packer.add(audio[start:stop], 7 * RATE + start)] if window]
    windows += [window for window in [packer.flush()] if window]
    assert packer.flush() is None
    received = np.concatenate([window.audio for window in windows] or [audio[:0]])
    np.testing.assert_array_equal(
        received, np.concatenate([audio[start:stop] for start, stop in expected] or [audio[:0]])
    )
    for window in windows:
        assert 0 < len(window.audio) <= most
        for place in (0, len(window.audio) // 2, len(window.audio) - 1):
            original = window.audio[place] / RATE + 7
            assert window.span(place / RATE, place / RATE)[0] == pytest.approx(original, abs=1e-2)
    for before, after in pairwise(windows):
        assert len(before.audio) + round(after.pieces[0].length * RATE) > most  # no window was closed too soon


@pytest.mark.parametrize(
    ("start", "end", "word", "segment"),
    [
        (1.0, 2.0, (4.0, 5.0), (4.0, 5.0)),
        (2.0, 3.0, (20.0, 21.0), (20.0, 21.0)),
        (1.5, 2.1, (4.5, 5.0), (4.5, 5.0)),  # a little of the next stretch
        (1.9, 2.5, (20.0, 20.5), (20.0, 20.5)),  # a little of the previous one
        (1.7, 2.2, (4.7, 5.0), (4.7, 5.0)),  # only padding of both
        (0.5, 3.6, (20.0, 21.6), (3.5, 21.6)),  # spoken before and after the silence
        (1.9, 4.1, (20.0, 22.0), (20.0, 22.0)),  # a little of the stretches around
        (0.5, 4.7, (20.0, 22.0), (3.5, 40.7)),
        (2.0, 2.0, (20.0, 20.0), (20.0, 20.0)),
    ],
)
def test_times_do_not_extend_over_a_removed_silence(
    start: float, end: float, word: tuple[float, float], segment: tuple[float, float]
) -> None:
    pieces = (Piece(0.0, 3.0, 2.0), Piece(2.0, 20.0, 2.0), Piece(4.0, 40.0, 1.0))
    window = Window(np.zeros(5 * RATE, dtype=np.float32), pieces)
    assert window.span(start, end) == pytest.approx(word)
    assert window.span(start, end, 0.4) == pytest.approx(segment)


def test_a_silence_of_a_second_is_kept() -> None:
    one, window = (0, RATE), 30 * RATE
    assert join_stretches([one, (2 * RATE, 3 * RATE)], window) == [(0, 3 * RATE)]
    assert join_stretches([one, (2 * RATE + 1, 3 * RATE)], window) == [one, (2 * RATE + 1, 3 * RATE)]


@pytest.mark.parametrize(
    ("seconds", "stretches", "blocks"),
    [
        # the first window comes soon, the others once there are many or much was read
        (200, [1], [(False, [1]), (True, [3])]),
        (500, [1], [(False, [1]), (False, [5]), (True, [3])]),
        (150, [20] * 12, [(False, [20] * 11), (False, [20] * 12), (True, [20] * 13)]),
        (10, [], [(True, [])]),
    ],
    ids=["few", "few in a long recording", "many", "silence"],
)
def test_windows_of_a_recording_come_in_blocks(
    monkeypatch: pytest.MonkeyPatch, seconds: int, stretches: list[int], blocks: list[tuple[bool, list[int]]]
) -> None:
    """In each part of the recording are these stretches of speech, in seconds."""

    class Voices:
        def __init__(self, threshold: float, window: int) -> None:
            self.begin = 0

        def add(self, part: Samples, *, final: bool) -> list[tuple[int, Samples]]:
            begin, self.begin = self.begin, self.begin + len(part)
            return [(begin, np.zeros(length * RATE, dtype=np.float32)) for length in stretches]

    monkeypatch.setattr(windows, "VoiceDetector", Voices)
    silence = [np.zeros(2 * RATE, dtype=np.float32)] * (seconds // 2)
    read = list(windows.read(silence, 0.5, 30 * RATE))  # type: ignore[arg-type]
    assert [(block.final, [window.seconds for window in block.windows]) for block in read] == blocks
    starts = [piece.start for block in read for window in block.windows for piece in window.pieces]
    assert starts == [60.0 * number for number in range(seconds // 60 + 1) for _ in stretches]


def test_segments_contain_all_text_of_the_window() -> None:
    zero, end = 100, 90
    tokens = [100, 1, 2, 150, 150, 3, 200, 91, 4]
    found = split(tokens, zero, end, 10.0)
    assert [(s.start, s.end, s.tokens, s.closed) for s in found] == [
        (0.0, 1.0, [1, 2], True),
        (1.0, 2.0, [3], True),
        (2.0, 10.0, [4], False),
    ]
    assert split([100, 1, 5000], zero, end, 3.0)[0].end == 3.0
    assert split([], zero, end, 3.0) == []
    assert [s.before for s in split([100, 1, 150, 175], zero, end, 3.0) if not s.tokens] == [1.0], "a segment begins"
    assert all(s.tokens for s in split([100, 1, 150], zero, end, 3.0)), "no segment begins"
    assert split([100, 150], zero, end, 3.0) == []


def test_words_are_in_the_segment_of_their_tokens() -> None:
    found = split([100, 1, 2, 150, 150, 3, 200], 100, 90, 10.0)
    aligned: list[dict[str, Any]] = [
        {"word": " one", "tokens": [1], "start": 0.1, "end": 0.4, "probability": 0.9},
        {"word": " two.", "tokens": [2], "start": 0.5, "end": 0.8, "probability": 0.8},
        {"word": "", "tokens": [], "start": 0.8, "end": 0.8, "probability": 0.1},
        {"word": " three", "tokens": [3], "start": 1.2, "end": 11.0, "probability": 0.7},
    ]
    found[1].end = 10.6
    place_words(found, aligned, 10.0, 5.0)
    assert [[word.word for word in segment.words] for segment in found] == [[" one", " two."], [" three"]]
    assert [(segment.start, segment.end) for segment in found] == [(0.1, 0.8), (1.2, 10.0)]


def test_a_word_across_a_border_moves_no_other_word() -> None:
    """It belongs to the segment in which it begins."""
    found = split([100, 1, 2, 3, 150, 150, 4, 5, 6, 200, 200, 7, 250], 100, 90, 10.0)
    aligned: list[dict[str, Any]] = [
        {"word": word, "tokens": tokens, "start": place / 2, "end": place / 2 + 0.4, "probability": 0.9}
        for place, (word, tokens) in enumerate([(" one", [1, 2]), (" two", [3, 4]), (" three", [5, 6]), (" four", [7])])
    ]
    place_words(found, aligned, 10.0, 0.4)
    assert [[word.word for word in segment.words] for segment in found] == [[" one", " two"], [" three"], [" four"]]


SENTENCES = [
    # the first word includes the silence before it, the last one the silence after it
    (
        [(3.0, 5.0)],
        [(" one", 0.0, 3.4), (" two", 3.4, 3.8), (" three", 3.8, 4.2), (".", 4.2, 4.2), (" four", 4.2, 9.0)],
    ),
    # a pause inside is assigned to the word before it, to the mark, or to the word after it
    (
        [(0.0, 6.0)],
        [(" one", 0.2, 0.5), (" two", 0.5, 0.9), (".", 0.9, 4.0), (" three", 4.0, 4.4), (" four", 4.4, 4.8)],
    ),
    (
        [(0.0, 6.0)],
        [(" one", 0.2, 0.5), (" two", 0.5, 0.9), (".", 0.9, 1.0), (" three", 1.0, 4.4), (" four", 4.4, 4.8)],
    ),
    # a pause between two segments is assigned to the second
    ([(0.0, 1.0), (4.0, 5.0)], [(" one", 0.1, 0.4), (" two", 0.4, 0.9), (" three", 0.9, 4.4), (" four", 4.4, 4.8)]),
    ([(0.0, 1.0), (4.0, 5.0)], [(" one", 0.1, 0.4), (" two", 0.4, 0.9), (" three", 0.9, 3.0), (" four", 3.0, 4.8)]),
    # after a pause, the second word is too long
    ([(3.0, 6.0)], [(" one", 3.0, 3.4), (" two", 3.4, 5.2), (" three", 5.2, 5.6), (" four", 5.6, 6.0)]),
    # the last word ends where its segment does, or after the length of a word
    ([(0.0, 2.0)], [(" one", 0.1, 0.4), (" two", 0.4, 0.8), (" three", 0.8, 1.2), (" four", 1.2, 4.0)]),
    ([(0.0, 1.3)], [(" one", 0.1, 0.4), (" two", 0.4, 0.8), (" three", 0.8, 1.2), (" four", 1.2, 4.0)]),
    # nothing to shorten
    ([(0.0, 1.0), (1.0, 2.0)], [(" one", 0.1, 0.4), (" two", 0.4, 0.9), (" three", 1.0, 1.4), (" four", 1.4, 1.9)]),
    ([(0.0, 1.0)], [(" one", 0.5, 0.5), (" two", 0.5, 0.5)]),
]


@pytest.mark.parametrize(("borders", "words"), SENTENCES)
def test_words_next_to_silence_have_the_librarys_times(
    borders: list[tuple[float, float]], words: list[tuple[str, float, float]]
) -> None:
    """Attention ignores silence, so that words next to it last for seconds."""
    from faster_whisper.transcribe import WhisperModel, merge_punctuations

    def aligned() -> list[dict[str, Any]]:
        return [
            {"word": word, "tokens": [number], "start": start, "end": end, "probability": 1.0}
            for number, (word, start, end) in enumerate(words)
        ]

    def tokens(number: int) -> list[int]:
        half = -(-len(words) // len(borders))
        return list(range(len(words)))[number * half : (number + 1) * half]

    library = SimpleNamespace(find_alignment=lambda *_: [aligned()], frames_per_second=100)
    parts: list[dict[str, Any]] = [
        {"start": start, "end": end, "tokens": tokens(n), "seek": 0} for n, (start, end) in enumerate(borders)
    ]
    marks = {"prepend_punctuations": PREPEND, "append_punctuations": APPEND}
    WhisperModel.add_word_timestamps(
        library, [parts], SimpleNamespace(eot=100), None, 1000, **marks, last_speech_timestamp=0.0
    )
    expected = [(word["word"], word["start"], word["end"]) for part in parts for word in part["words"]]

    segments = [TimedSegment(start, end, tokens(number)) for number, (start, end) in enumerate(borders)]
    given = aligned()
    typical = shorten_words(given)
    merge_punctuations(given, PREPEND, APPEND)
    place_words(segments, given, 10.0, typical)
    found = [(word.word, word.start, word.end) for segment in segments for word in segment.words]
    assert found == [(word, pytest.approx(start), pytest.approx(end)) for word, start, end in expected]
    assert all(segment.start <= word.start <= word.end <= segment.end for segment in segments for word in segment.words)
