"""Report the exact bytes of a token in logprobs, where vLLM reports those of its decoded text.

vLLM decodes a token that is part of a character to nothing or to U+FFFD, and the last one to the whole character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>\Z")


@cache
def _byte_letters() -> dict[str, int]:
    """Return the characters by which byte-level tokenizers write bytes; printable bytes represent themselves."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(others)}


class TokenBytes:
    """The bytes of each token of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._byte_level = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        self._added = frozenset(getattr(tokenizer, "added_tokens_decoder", ()))

    def __call__(self, token: int) -> bytes | None:
        """Return the token's bytes; None if they are those of its text."""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return None
        if match := _BYTE.match(piece):
            return bytes([int(match[1], 16)])
        if not self._byte_level or token in self._added:
            return None
        letters = _byte_letters()
        return bytes(letters[letter] for letter in piece) if all(letter in letters for letter in piece) else None


def patch(state: Any) -> None:
    """Report real bytes in Chat Completions and Responses. Completions has no field for them."""
    for name, method in (
        ("openai_serving_chat", "_create_chat_logprobs"),
        ("openai_serving_responses", "_create_response_logprobs"),
    ):
        if (handler := getattr(state, name, None)) is not None:
            setattr(handler, method, _mended(getattr(handler, method)))


def _mended(stock: Callable[..., Any]) -> Callable[..., Any]:
    bytes_of = cache(TokenBytes)

    def create(token_ids: Sequence[int], tokenizer: Any, **named: Any) -> Any:
        answer = stock(token_ids=token_ids, tokenizer=tokenizer, **named)
        of_token = bytes_of(tokenizer)
        steps = named.get("logprobs") or named["top_logprobs"]
        for token, step, entry in zip(token_ids, steps, getattr(answer, "content", answer), strict=True):
            _set(entry, of_token(token))
            for other, candidate in zip(step or (), entry.top_logprobs, strict=False):
                _set(candidate, of_token(other))
        return answer

    return create


def _set(entry: Any, found: bytes | None) -> None:
    if found is not None:
        entry.bytes = list(found)
