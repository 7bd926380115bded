"""Checks before vLLM's application sees a body: what it answers with 500, or chews on while every stream waits."""

from typing import Annotated

import msgspec
from msgspec import Meta

from registry.errors import BadRequest, TooLarge

PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
    }
)
"""What a chat engine answers."""
CONSTRAINTS = (b"response_format", b"structured_outputs", b"tools", b"text")
TOKENIZING = frozenset({"/tokenize", "/detokenize"})
BYTES_PER_TOKEN = 16
LEAST_BYTES = 64 << 10


class _Asked(msgspec.Struct):
    model: str | None = None


def asked_model(body: bytes) -> str | None:
    """The body's `model`, None when it has none.

    Raises BadRequest for what is not a JSON object with a string there, and for JSON nested deeper than parsers go:
    what this parser cannot read, another one might read differently, and answer for another model.
    """
    try:
        return msgspec.json.decode(body, type=_Asked).model
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not a JSON object as expected: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the JSON body is nested too deeply", code="json_too_deep") from None


def bounded(path: str, body: bytes, context_length: int) -> None:
    """Tokenizing has no bound of its own in vLLM: 2 MB of text take 2 s, part of it on the loop that feeds streams.

    Raises TooLarge for bodies over 16 bytes per token of context.
    """
    limit = max(LEAST_BYTES, BYTES_PER_TOKEN * context_length)
    if path in TOKENIZING and len(body) > limit:
        raise TooLarge(f"{path} takes up to {limit} bytes for this model; send {len(body)} bytes in parts")


class _Typical(msgspec.Struct):
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    typical_top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    typical_top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class _Extra(msgspec.Struct):
    vllm_xargs: msgspec.Raw = msgspec.Raw(b"null")
    temperature: msgspec.Raw = msgspec.Raw(b"null")


def typical(body: bytes, *, able: bool) -> None:
    """Raise BadRequest for typical decoding that this engine cannot do, or with values that mean nothing."""
    if b"typical_" not in body:
        return
    try:
        extra = msgspec.json.decode(body, type=_Extra)
        asked = msgspec.json.decode(extra.vllm_xargs, type=_Typical | None)
    except msgspec.ValidationError as error:
        raise BadRequest(f"vllm_xargs: {error}", param="vllm_xargs") from None
    greedy = msgspec.json.decode(extra.temperature) == 0  # the likeliest token is taken, whatever is typical
    if not able and not greedy and asked is not None and asked.typical_p not in (None, 1):
        raise BadRequest(
            "This model's engine has no typical decoding (it decodes speculatively): leave 'typical_p' out, or set it "
            "to null (None), or to 1, or ask for temperature 0.",
            param="typical_p",
            code="unsupported_value",
        )


def unanswerable(body: bytes, reached_engine: bool) -> BadRequest | None:
    """What a 5xx of a living engine means. None: the engine's own fault.

    Before anything reached the engine it is vLLM's preprocessing that stumbled over the body. Afterwards it is a
    grammar that no text satisfies, such as the schema {"$ref": "#"}: vLLM ends that request as an internal error.
    """
    if not reached_engine:
        return BadRequest("vLLM could not make sense of this request", code="unprocessable_request")
    if any(key in body for key in CONSTRAINTS):
        return BadRequest("no text satisfies the schema or grammar of this request", code="unsatisfiable_constraint")
    return None
