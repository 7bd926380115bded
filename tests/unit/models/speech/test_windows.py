"""How recordings become windows and windows become segments: without a model."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.speech.model import place_words, split
from models.speech.windows import RATE, Packer, join_stretches

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
def test_windows_hold_all_speech_once_and_know_their_times(stretches: list[tuple[int, int]], most: int) -> None:
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
            assert window.time(place / RATE) == pytest.approx(original, abs=1e-2)
    for before, after in pairwise(windows):
        assert len(before.audio) + round(after.pieces[0].length * RATE) > most  # no window was closed too soon


def test_split_keeps_all_text_within_the_window() -> None:
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
    assert [s.before for s in split([100, 1, 150, 175], zero, end, 3.0) if not s.tokens] == [1.0], "something begins"
    assert all(s.tokens for s in split([100, 1, 150], zero, end, 3.0)), "nothing does"
    assert split([100, 150], zero, end, 3.0) == []


def test_words_go_to_the_segment_of_their_tokens() -> None:
    found = split([100, 1, 2, 150, 150, 3, 200], 100, 90, 10.0)
    aligned: list[dict[str, object]] = [
        {"word": " one", "tokens": [1], "start": 0.1, "end": 0.4, "probability": 0.9},
        {"word": " two.", "tokens": [2], "start": 0.5, "end": 0.8, "probability": 0.8},
        {"word": "", "tokens": [], "start": 0.8, "end": 0.8, "probability": 0.1},
        {"word": " three", "tokens": [3], "start": 1.2, "end": 11.0, "probability": 0.7},
    ]
    place_words(found, aligned, 10.0)
    assert [[word.word for word in segment.words] for segment in found] == [[" one", " two."], [" three"]]
    assert [(segment.start, segment.end) for segment in found] == [(0.1, 0.8), (1.2, 10.0)]


def test_a_word_that_reaches_over_a_border_moves_no_other() -> None:
    """It is of the segment that it begins in."""
    found = split([100, 1, 2, 3, 150, 150, 4, 5, 6, 200, 200, 7, 250], 100, 90, 10.0)
    aligned: list[dict[str, object]] = [
        {"word": word, "tokens": tokens, "start": place / 2, "end": place / 2 + 0.4, "probability": 0.9}
        for place, (word, tokens) in enumerate([(" one", [1, 2]), (" two", [3, 4]), (" three", [5, 6]), (" four", [7])])
    ]
    place_words(found, aligned, 10.0)
    assert [[word.word for word in segment.words] for segment in found] == [[" one", " two"], [" three"], [" four"]]
