"""Read JSON from clients, providers and model files."""

import json
from pathlib import Path
from typing import Any

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for JSON of another form, for bytes that are no UTF-8, and for too deep nesting."""


def read_object(file: Path) -> dict[str, Any]:
    """The object in a model's file; empty if unreadable: a load reports the fault."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
