"""Fit answers of Chat Completions and Completions."""

import re

import msgspec

from models.chat.answers.shapes import Fault
from registry.base.json import NOT_JSON
from registry.errors import RoundhouseError, by_status, short

_BEGIN = b'data: {"error":'
_ERRORS = re.compile(rb'^data: (\{"error":.*\})\r?$', re.MULTILINE)


class _ErrorBody(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _ErrorEvent(msgspec.Struct):
    error: _ErrorBody


def fit_errors(data: bytes, fault: Fault) -> bytes:
    """Give each error a textual `code`, and shorten its message."""
    return _ERRORS.sub(lambda match: _fit_error(match, fault), data) if _BEGIN in data else data


def _fit_error(match: re.Match[bytes], fault: Fault) -> bytes:
    try:
        error = msgspec.json.decode(match[1], type=_ErrorEvent).error
    except NOT_JSON:
        return match[0]
    if error.code == RoundhouseError.status and (cause := fault()) is not None:
        error = _ErrorBody(cause.message, cause.type, cause.param, cause.code)
    elif isinstance(error.code, int):
        kind = by_status(error.code)
        error.type, error.code = kind.type, kind.code
    error.message = short(error.message)
    return b"data: " + msgspec.json.encode(_ErrorEvent(error))


NAMES = (
    "annotations", "audio", "completion_tokens_details", "function_call", "prompt_tokens_details", "reasoning",
    "service_tier",
)  # fmt: skip
PIECES = ("id", "name", "type")
"""Fields of a call in a stream that only its first chunk has."""
OWN = (
    "ec_transfer_params",
    "kv_transfer_params",
    "metrics",
    "prompt_logprobs",
    "prompt_text",
    "prompt_token_ids",
    "routed_experts",
    "token_ids",
)
"""vLLM's own fields, on request."""
_NULL = b'"(?:' + "|".join((*NAMES, *PIECES, *OWN)).encode() + b')":null'
_NULL_PAIRS = re.compile(b"," + _NULL + rb"|(?<=\{)(?:" + _NULL + b",?)+")
_LOGPROBS = b'"logprobs":{"content":'


def fit_completion(data: bytes, fault: Fault) -> bytes:
    """Remove these nulls. If there are logprobs, those of a refusal stay null, as always with vLLM."""
    return fit_errors(_NULL_PAIRS.sub(b"", data), fault).replace(_LOGPROBS, b'"logprobs":{"refusal":null,"content":')


_REASONING = re.compile(rb'"reasoning":("(?:[^"\\]++|\\.)*+")')
_REASONING_FIELDS = {
    "reasoning_content": rb'"reasoning_content":\1',
    "both": rb'"reasoning":\1,"reasoning_content":\1',
}


def name_reasoning(data: bytes, field: str) -> bytes:
    """Write the reasoning of Chat Completions to `reasoning_field` of the recipe.

    vLLM's own name is the default. With both names, clients that deserialise them into one field refuse the answer, and
    those that add up what they find show the text twice.
    """
    template = _REASONING_FIELDS.get(field)
    return data if template is None else _REASONING.sub(template, data)


_CHAT = re.compile(rb'("object":"chat\.completion(?:\.chunk)?",)')


def add_tier(data: bytes, tier: str) -> bytes:
    """Add OpenAI's `service_tier`. The pattern cannot match inside strings, where quotes are escaped."""
    return _CHAT.sub(rb'\1"service_tier":"' + tier.encode() + b'",', data)
