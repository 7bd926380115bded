"""Checks before vLLM's application sees a body: what it answers with 500, or chews on while every stream waits."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from registry.base.json import NOT_JSON
from registry.bounds import Bounds
from registry.errors import BadRequest, TooLarge, short

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
CUT = b'"truncate_prompt_tokens"'
TOKENIZING = frozenset({"/tokenize", "/detokenize"})
LONGEST_ERROR = 4 << 10
ADVICE = {
    b"As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    b"tokenizer does not define one.": (
        b"This model has no chat template: continue a text with /v1/completions, or let its recipe name a template in "
        b"engine.flags.chat_template."
    ),
    b"tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set": (
        b"tool choice needs a parser of this model's calls: leave 'tools' out, or let its recipe name one in "
        b"engine.flags.tool_call_parser, with engine.flags.enable_auto_tool_choice: true."
    ),
    b" requires --tool-call-parser to be set": (
        b" needs a parser of this model's calls: leave 'tools' out, or let its recipe name one in "
        b"engine.flags.tool_call_parser."
    ),
    b"--trust-request-chat-template is not set. Refused request with untrusted chat template.": (
        b"a template is a program: let the model's recipe name it in engine.flags.chat_template."
    ),
}
"""What vLLM advises to whoever starts it from a shell, and what can be done here."""
_WORDS = re.compile(r"[a-z][a-z_]+")
_NUMBER = re.compile(rb'"?[-0-9]')
"""How numbers begin, also those in texts, which vLLM takes."""


class _ModelField(msgspec.Struct):
    model: str | None = None


def requested_model(body: bytes) -> str | None:
    """The body's `model`, None when it has none.

    Raises BadRequest for what is not a JSON object with a string there, and for JSON nested deeper than parsers go:
    what this parser cannot read, another one might read differently, and answer for another model.
    """
    try:
        return msgspec.json.decode(body, type=_ModelField).model
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not a JSON object as expected: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the JSON body is nested too deeply", code="json_too_deep") from None


def check_size(path: str, body: bytes, context_length: int, bounds: Bounds, *, text_only: bool = True) -> None:
    """Refuse by size before anything is parsed: a prompt of 2 MB takes vLLM 2 s, part of it on the loop that feeds
    streams, and 3.4 MB of messages stopped all streams for a second.

    Raises TooLarge for bodies over so many bytes per token of context; a model of images may be sent some.
    """
    if path in TOKENIZING or _cuts(body):
        limit = max(bounds.text_bytes_least, bounds.text_bytes_per_token * context_length)
    else:
        limit = max(bounds.body_bytes_least, bounds.body_bytes_per_token * context_length)
    if len(body) > limit and (text_only or path in TOKENIZING):
        raise TooLarge(
            f"{path} takes up to {limit} bytes for this model; {len(body)} were sent. Send less, or in parts."
        )


class _Cut(msgspec.Struct):
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw(b"null")


def _cuts(body: bytes) -> bool:
    """Whether the prompt is to be cut: vLLM reads all of it into tokens first, without a look at its length."""
    try:
        return CUT in body and msgspec.json.decode(body, type=_Cut).truncate_prompt_tokens != msgspec.Raw(b"null")
    except NOT_JSON:
        return False  # what is wrong with it is told later


class _Error(msgspec.Struct):
    error: object = None
    message: str = ""


def shorten_error(data: bytes) -> bytes:
    """An error body of vLLM's with a message that is no longer than ours: it may quote a whole request. What it
    advises can be done here."""
    for shell, here in ADVICE.items():
        data = data.replace(shell, here)
    if len(data) <= LONGEST_ERROR:
        return data
    try:
        whole = msgspec.json.decode(data, type=_Error)
        inner = whole.error if isinstance(whole.error, dict) else {"message": whole.message or whole.error}
    except NOT_JSON:
        inner = {}
    cut = {key: short(value, 1_000) if isinstance(value, str) else None for key, value in inner.items()}
    text = {"message": cut.get("message") or "vLLM refused this request"}
    known = {key: inner[key] if isinstance(inner.get(key), int) else cut.get(key) for key in ("type", "param", "code")}
    return msgspec.json.encode({"error": text | known})


def with_param(data: bytes, body: bytes) -> bytes:
    """An error body of vLLM's with the field that it is about: the first of `body`'s numbers that its message names."""
    try:
        whole = msgspec.json.decode(data, type=dict[str, Any])
        error = whole.get("error")
        if not isinstance(error, dict) or error.get("param") is not None:
            return data
        numbers = _numbers(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except NOT_JSON:
        return data
    words = _WORDS.findall(str(error.get("message")))
    param = next((numbers[word] for word in words if word in numbers), None)
    return data if param is None else msgspec.json.encode({**whole, "error": {**error, "param": param}})


def _numbers(fields: Mapping[str, msgspec.Raw], within: str = "") -> dict[str, str]:
    """Names of numbers with their places, in `fields` and in its objects."""
    found = {}
    for name, raw in fields.items():
        if _NUMBER.match(raw):
            found[name] = within + name
        elif not within and bytes(raw)[:1] == b"{":
            found = _numbers(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]), f"{name}.") | found
    return found


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
        settings = msgspec.json.decode(extra.vllm_xargs, type=_Typical | None)
    except msgspec.ValidationError as error:
        raise BadRequest(f"vllm_xargs: {error}", param="vllm_xargs") from None
    greedy = msgspec.json.decode(extra.temperature) == 0  # the likeliest token is taken, whatever is typical
    if not able and not greedy and settings is not None and settings.typical_p not in (None, 1):
        raise BadRequest(
            "This model's engine has no typical decoding (it decodes speculatively): leave 'typical_p' out, or set it "
            "to null (None), or to 1, or ask for temperature 0.",
            param="typical_p",
            code="unsupported_value",
        )


def explain_failure(*, reached_engine: bool, constrained: bool) -> BadRequest | None:
    """What a 5xx of a living engine means. None: the engine's own fault.

    Before anything reached the engine it is vLLM's preprocessing that stumbled over the body. Afterwards it is a
    grammar that no text satisfies, such as the schema {"$ref": "#"}: vLLM ends that request as an internal error.
    """
    if not reached_engine:
        return BadRequest("vLLM could not make sense of this request", code="unprocessable_request")
    if constrained:
        return BadRequest("no text satisfies the schema or grammar of this request", code="unsatisfiable_constraint")
    return None
