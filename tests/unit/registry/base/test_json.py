"""What somebody else wrote and is no JSON is caught whole, wherever it is read."""

import re
from pathlib import Path

import msgspec
import pytest

from registry.base.json import NOT_JSON

ROOT = Path(__file__).parents[4]
ROOMS = ("runtime", "console", "fleet", "tenants", "routing", "batches", "launch", "models", "adapters")
APART = {"runtime/slots/frames.py", "models/chat/grammars/sizes.py"}
"""Our own frames, and a text that is Unicode already."""


@pytest.mark.parametrize("data", [b"", b"{", b'"\xb6"', b"[" * 100_000, b'{"a": 1}', b"9" * 5000])
def test_what_is_no_json_as_requested(data: bytes) -> None:
    with pytest.raises(NOT_JSON):
        msgspec.json.decode(data, type=list[dict[str, str] | str])


def test_no_one_catches_a_part_of_it() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    partly = re.compile(r"(except|suppress)\b.*\bmsgspec\.(Decode|Msgspec)Error")
    found = {str(file.relative_to(ROOT)) for file in files if partly.search(file.read_text(encoding="utf-8"))}
    assert found == APART
