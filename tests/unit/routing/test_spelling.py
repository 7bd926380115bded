"""Typing errors are corrected to words of the examples that have the same neighbours."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.intents.spelling import MAX_CHARACTERS, Spelling, is_one_error_away, mistyped, recased
from tests.processor_time import processor_time

EXAMPLES = (
    "set an alarm for seven",
    "set a timer for ten minutes",
    "what is the weather in paris",
    "how do you say good morning in french",
    "move ten euros to my savings",
)
SPELLING = Spelling.of(EXAMPLES)
LETTERS = st.text("abc", min_size=0, max_size=6)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("set an alrm for seven", "set an alarm for seven"),
        ("SET A TIEMR FOR TEN MINUTES", "SET A timer FOR TEN MINUTES"),
        ("whatt is the weathre in Paris?", "what is the weather in Paris?"),
        ("how do you say good mornung in french", "how do you say good morning in french"),
        ("is there any danger in lima", "is there any danger in lima"),  # no typing error
        ("a nove there", "a nove there"),  # near `move`, but with other neighbours
        ("", ""),
        ("12 + 7 = 19 😀", "12 + 7 = 19 😀"),
    ],
)
def test_texts_are_corrected(typed: str, meant: str) -> None:
    assert SPELLING.corrected(typed) == meant


def test_the_next_word_decides_between_two_similar_words() -> None:
    spelling = Spelling.of(["a large house", "a large house", "a lange horn"])
    assert spelling.corrected("the larke horn") == "the larke horn", "neither of the similar words has this neighbour"
    assert spelling.corrected("the lazge horn") == "the lange horn"
    assert spelling.corrected("the lazge house") == "the large house"


def test_examples_are_unchanged_and_most_typing_errors_corrected() -> None:
    assert [SPELLING.corrected(text) for text in EXAMPLES] == list(EXAMPLES)
    rng = Random(1)
    typed = [(text, recased(mistyped(text, rng), rng)) for text in EXAMPLES * 20]
    assert sum(SPELLING.corrected(t).lower() == text for text, t in typed) >= 0.9 * len(typed)


def test_a_long_text_is_unchanged() -> None:
    long = "set an alrm for seven " * (MAX_CHARACTERS // 20)
    assert SPELLING.corrected(long) == long


@given(LETTERS, LETTERS)
def test_one_error_is_a_deletion_insertion_replacement_or_swap(a: str, b: str) -> None:
    places, letters = range(len(a)), "abc"
    near = {a}
    near |= {a[:i] + a[i + 1 :] for i in places} | {a[:i] + x + a[i + 1 :] for i in places for x in letters}
    near |= {a[:i] + x + a[i:] for i in range(len(a) + 1) for x in letters}
    near |= {a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1)}
    assert is_one_error_away(a, b) == (b in near)


@given(st.text())
def test_any_text_is_accepted(text: str) -> None:
    assert isinstance(SPELLING.corrected(text), str)


def test_similar_words_cost_no_more_than_others() -> None:
    """A client may upload a model. With such words, one text blocked the event loop for eleven seconds."""
    words = {f"ab{chr(0x4E00 + n)}c": 1 for n in range(20_000)}
    spelling = Spelling(words, {("", word): 1 for word in words})
    with processor_time() as seconds:
        spelling.corrected(" ".join(["abqc"] * 400))
        assert seconds() < 1
