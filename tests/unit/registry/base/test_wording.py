"""Suggestions for unknown names."""

import difflib
from collections.abc import Sequence
from typing import Any

import pytest

from registry.base.wording import LIKELY, LISTED, nearest


@pytest.mark.parametrize("typo", ["upport-742", "suport-742", "support-742x", "aupport-742"])
def test_a_name_with_a_typo_is_found_among_a_thousand(typo: str) -> None:
    names = [f"support-{number}" for number in range(1000)]
    assert "support-742" in nearest(typo, names)[:2]
    assert len(nearest(typo, names)) == LISTED


def test_similar_names_come_first_and_each_name_once() -> None:
    assert nearest("chat", ["embed", "chats", "rerank"]) == ["chats", "embed", "rerank"]


def test_few_of_many_names_are_compared_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may send unknown names, and a team may choose adapter names whose comparison is slow."""
    stock, compared = difflib.get_close_matches, list[int]()

    def get_close_matches(word: str, possibilities: Sequence[str], **named: Any) -> list[str]:
        compared.append(len(possibilities))
        return stock(word, possibilities, **named)

    monkeypatch.setattr(difflib, "get_close_matches", get_close_matches)
    for count in (3, LIKELY, LIKELY + 1, 10_000):
        nearest("ab" * 32, [f"{'ab' * 16}{number:032b}" for number in range(count)])
    assert compared == [3, LIKELY, LIKELY, LIKELY]
