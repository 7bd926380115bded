"""Pages for users use a word of ours only once it is explained, and do not send their readers into tests."""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import fences, pages

OURS = ("slot", "place", "staged")
REFERENCE = ("cli.md", "errors.md", "performance.md")
"""Read for one row, by those who know the words."""
GENERATED = re.compile(r"<!-- generated.*?<!-- end", re.DOTALL)
PAGES = [page for page in pages() if page.name not in REFERENCE]


def prose(page: str) -> str:
    """Without generated tables, fenced blocks and code."""
    page = GENERATED.sub("", page)
    fenced = (part for part in fences(page.splitlines()) if not isinstance(part, str))
    lines = page.splitlines()
    for block in fenced:
        lines[block.line - 1 : block.end] = [""] * (block.end - block.line + 1)
    return re.sub(r"`[^`]*`", "", "\n".join(lines))


def unexplained(word: str, page: str) -> str:
    """Pages that first use the word without saying what it is: '**slot**', '| slot |', 'slots (' or 'slot:'."""
    used = re.search(rf"\b{word}s?\b", page)
    if used is None:
        return ""
    around = page[max(0, used.start() - 2) : used.end() + 2]
    reported = re.search(rf"\*\*{word}s?\*\*|\| {word} \||{word}s? \(|{word}s?:", around)
    return "" if reported else page[max(0, used.start() - 60) : used.end() + 60]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("word", OURS)
def test_a_word_of_ours_is_explained_where_a_page_first_has_it(page: Path, word: str) -> None:
    text = re.sub(
        r"\b(?:a|one|in|takes?|any) place\b", "", prose(page.read_text(encoding="utf-8"))
    )  # as anybody says it
    assert unexplained(word, text) == ""


def test_one_that_is_not_explained_is_seen() -> None:
    assert unexplained("slot", "It waits for a slot.")
    assert not unexplained("slot", "A **slot** is a process. It waits for a slot.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_reader_is_sent_into_a_test(page: Path) -> None:
    assert re.findall(r"\btests/\S*test_\w+", page.read_text(encoding="utf-8")) == []
