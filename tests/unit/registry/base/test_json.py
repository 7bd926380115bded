"""Every error of decoding foreign JSON is caught, wherever it is decoded."""

import re
from pathlib import Path

import msgspec
import pytest

from registry.base.json import NOT_JSON

ROOT = Path(__file__).parents[4]
ROOMS = ("runtime", "console", "fleet", "tenants", "routing", "batches", "launch", "models", "adapters")
APART = {"runtime/slots/frames.py", "models/chat/grammars/sizes.py"}
"""Files that decode our own frames, or a text that is already Unicode."""


@pytest.mark.parametrize("data", [b"", b"{", b'"\xb6"', b"[" * 100_000, b'{"a": 1}', b"9" * 5000])
def test_invalid_json_raises_one_of_the_errors(data: bytes) -> None:
    with pytest.raises(NOT_JSON):
        msgspec.json.decode(data, type=list[dict[str, str] | str])


def test_no_code_catches_only_some_of_the_errors() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    pattern = re.compile(r"(except|suppress)\b.*\bmsgspec\.(Decode|Msgspec)Error")
    found = {str(file.relative_to(ROOT)) for file in files if pattern.search(file.read_text(encoding="utf-8"))}
    assert found == APART
