"""Answers that are asked to be longer than the context leaves room for."""

from collections.abc import Mapping

import msgspec

from registry.base.json import NOT_JSON

FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Of Chat Completions, Completions and Messages; of Chat Completions; of Responses."""


def token_limits(body: bytes) -> Mapping[str, int]:
    """Those of `FIELDS` that hold a number. What is none of them, vLLM refuses."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    values = {name: _number(fields[name]) for name in FIELDS if name in fields}
    return {name: value for name, value in values.items() if value is not None}


def _number(raw: msgspec.Raw) -> int | None:
    try:
        return msgspec.json.decode(raw, type=int)
    except NOT_JSON:
        return None


def cut(body: bytes, most: int) -> bytes:
    """The body with no more than `most` tokens asked for; the same when it asks for none above."""
    over = [name for name, value in token_limits(body).items() if value > most]
    if not over:
        return body
    whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(whole | dict.fromkeys(over, msgspec.Raw(str(most).encode())))


def warning(body: bytes, allowed: int | None) -> str:
    """What to tell a client whose answer may be shorter than it asked for; empty: nothing."""
    most = min(token_limits(body).values(), default=0)
    if allowed is None or allowed >= most:
        return ""
    return f"max_tokens was cut from {most} to {allowed}: the context has no room for more"
