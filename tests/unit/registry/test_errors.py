"""Error messages quote clients' text, which must not make them long or impossible to encode."""

import json

import pytest

from registry.errors import LONGEST, BadRequest, short


@pytest.mark.parametrize("letter", ["\x00", "\x1b", "\ud83d", "\\", '"', "€", "😀", "a"])
@pytest.mark.parametrize("number", [1, LONGEST, 100_000])
def test_a_message_is_short_in_json_too(letter: str, number: int) -> None:
    message = BadRequest(letter * number).message
    assert len(message.encode()) <= LONGEST
    assert len(json.dumps(message, ensure_ascii=False).encode()) <= 2 * LONGEST + 2


def test_ordinary_text_is_unchanged() -> None:
    for text in ("", "two\nlines\tand “quotes” 日本 😀", "x" * LONGEST):
        assert short(text) == text
