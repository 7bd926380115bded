"""Faults of an adapter: short, printable, and equal ones of many layers in one sentence."""

import pytest

from adapters.content.faults import MAX_FAULTS, MAX_TEXT, Faults, few, quote_value, shorten


@pytest.mark.parametrize(
    ("modules", "named"), [("a", "a"), ("abcd", "a, b, c, d"), ("abcdef", "a, b, c, d and 2 more")]
)
def test_a_fault_of_many_layers_is_one_sentence_that_names_some(modules: str, named: str) -> None:
    faults = Faults()
    assert not faults
    for module in modules:
        faults.at(module, "it is missing.")
    faults.add("Another one.")
    faults.add("Another one.")
    assert faults.sentences() == [f"{named}: it is missing.", "Another one."]
    assert faults


def test_the_number_of_faults_is_bounded() -> None:
    sentences = [str(number) for number in range(MAX_FAULTS + 1)]
    assert few(sentences[:-1], "faults") == sentences[:-1]
    assert few(sentences, "notes") == [*sentences[: MAX_FAULTS - 1], "2 more notes are not listed."]


def test_what_a_file_says_is_quoted_short_and_printable() -> None:
    assert shorten("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert shorten("x" * (MAX_TEXT + 1)) == "x" * (MAX_TEXT - 1) + "…"
    assert shorten("a\nb\x1b[2J größer\ud800") == "a?b?[2J größer?"
    assert quote_value("x" * 100) == "'" + "x" * 78 + "…"
