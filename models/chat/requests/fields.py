"""Fields that vLLM would take and then leave out without a word: refused here, as the vendors do.

vLLM's request classes keep unknown fields and ignore them, so a client would get another answer than it asked for. What
no answer depends on is let through: clients send it by themselves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from models.chat.requests import shapes, template
from registry.base.json import NOT_JSON
from registry.errors import BadRequest
from registry.recipes.fields import Flag

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
COMPLETIONS = "/v1/completions"
VENDORS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS)
"""Whose clients expect to be told of fields that are not known. vLLM's own paths ignore them."""

WITHOUT_EFFECT = frozenset(
    {
        "cache_control", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "user",
    }
)  # fmt: skip
"""What the vendors keep books by, or make answers come sooner with; the answer is the same without."""
PLAIN: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "function_call": ("none",),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "verbosity": ("medium",),
}
"""Values of fields that mean what the engine does anyway."""
EMPTY: tuple[object, ...] = (None, [])
INSTEAD: Mapping[str, str] = {
    "best_of": "ask for several with 'n', and choose among them.",
    "functions": "send 'tools'.",
    "function_call": "send 'tool_choice'.",
    "tools": "it needs a parser of this model's calls. Its recipe may name one in engine.flags.tool_call_parser, with "
    "engine.flags.enable_auto_tool_choice: true.",
    "stop_sequences": "send 'stop'.",
    "max_new_tokens": "send 'max_tokens'.",
    **{
        f"guided_{kind}": f"send 'structured_outputs': {{\"{kind}\": ...}}."
        for kind in ("json", "regex", "choice", "grammar")
    },
}
"""What to send for fields of the same meaning that earlier vLLMs, OpenAI's older clients and other servers know."""

Fields = Mapping[str, frozenset[str]]
"""Path to the fields that the engine knows."""


EFFORT = ("reasoning_effort", "enable_thinking")
"""What vLLM tells a chat template of the effort that a client asks for."""


def knows_effort(path: Path, flags: Mapping[str, Flag]) -> bool:
    """Whether the chat template of the model in folder `path` does anything with an effort. True: it cannot be told."""
    templates = template.texts(path, flags)
    return not templates or any(word in text for text in templates for word in EFFORT)


def known(app: Any, *, effort: bool = True, calls: bool = True) -> Fields:
    """What the request class of each path of vLLM's application has, aliases included.

    effort: the model's chat template knows an effort of reasoning, which vLLM would else be told for nothing.
    calls: there is a parser of the model's calls, without which Responses would take tools for nothing.
    """
    known_fields: dict[str, frozenset[str]] = {}
    for route in app.routes:
        path = getattr(route, "path", None)
        if path not in VENDORS:
            continue
        for kind in get_type_hints(route.endpoint).values():
            fields = getattr(kind, "model_fields", {})
            if "model" in fields:
                known_fields[path] = frozenset(fields) | {field.alias for field in fields.values() if field.alias}
    if CHAT in known_fields and not effort:
        known_fields[CHAT] -= {"reasoning_effort"}
    if RESPONSES in known_fields and not calls:
        known_fields[RESPONSES] -= {"tools"}
    if COUNT_TOKENS in known_fields:  # the count is the same whatever else the message asks for
        known_fields[COUNT_TOKENS] |= known_fields.get(MESSAGES, frozenset())
    return known_fields


def check(fields: Fields, path: str, body: bytes) -> None:
    """Raise BadRequest for a field of `body`, a JSON object, that the engine would ignore though it matters."""
    if path not in fields:
        return
    data: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in sorted(data.keys() - fields[path] - WITHOUT_EFFECT):
        value = msgspec.json.decode(data[name])
        uncalled = name == "tools" and bytes(data.get("tool_choice", b"")) == b'"none"'
        if uncalled or value in EMPTY or value in PLAIN.get(name, ()):
            continue
        text = f"Unrecognized request argument supplied: {name}."
        if path in (MESSAGES, COUNT_TOKENS):
            text = f"{name}: Extra inputs are not permitted."
        advice = INSTEAD.get(name, "leave it out.")
        raise BadRequest(f"{text} This engine would ignore it: {advice}", param=name, code="unknown_parameter")
    effort = "reasoning_effort" in fields.get(CHAT, frozenset())
    if path in (CHAT, COMPLETIONS):
        shapes.check_chat(data)
    elif path == RESPONSES:
        _responses(data)
        _reasoning(data, effort=effort)
        shapes.check_responses(data)
    elif path == MESSAGES:
        shapes.check_messages(data, effort=effort)


def without_nulls(path: str, body: bytes) -> bytes:
    """The body without its fields that are null: to the vendors' clients they are as good as left out.

    vLLM refuses some of them, and others when the whole answer has been made.
    """
    if path not in VENDORS or b"null" not in body:
        return body
    try:
        data: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return body  # what is wrong with it is told later
    present = {name: value for name, value in data.items() if bytes(value) != b"null"}
    return body if len(present) == len(data) else msgspec.json.encode(present)


NOT_STORED = "store: nothing is stored here"


def without_store(path: str, body: bytes) -> tuple[bytes, str]:
    """The body without OpenAI's wish to keep the answer, and what to tell of it; empty: there was none.

    Clients send it by themselves, and the answer is the same without.
    """
    if path not in (CHAT, RESPONSES) or b'"store"' not in body:
        return body, ""
    data: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if bytes(data.get("store", b"")).strip() != b"true":
        return body, ""
    return msgspec.json.encode({**data, "store": msgspec.Raw(b"false")}), NOT_STORED


class _Tool(msgspec.Struct):
    type: Any = None


def _responses(data: Mapping[str, msgspec.Raw]) -> None:
    """What vLLM has fields for, and does nothing with, or not what it should: stored responses, prompts that are cut to
    fit, the vendor's own tools."""
    if msgspec.json.decode(data.get("store", b"false")) is True:
        raise BadRequest(
            "Responses are not stored here. Leave 'store' out, and send the conversation as 'input'.",
            param="store",
            code="unsupported_value",
        )
    if msgspec.json.decode(data.get("previous_response_id", b"null")) is not None:
        raise BadRequest(
            "Responses are not stored here, so there is none to go on from. Leave 'previous_response_id' out, and send "
            "the conversation as 'input'.",
            param="previous_response_id",
            code="unsupported_value",
        )
    if msgspec.json.decode(data.get("truncation", b"null")) not in (None, "disabled"):
        raise BadRequest(
            "An input that is too long is not cut to fit: leave 'truncation' out, and send less.",
            param="truncation",
            code="unsupported_value",
        )
    try:
        tools = msgspec.json.decode(data.get("tools", b"[]"), type=list[_Tool])
    except msgspec.ValidationError:
        return  # vLLM says what is wrong with them
    for index, tool in enumerate(tools):
        if isinstance(tool.type, str) and tool.type != "function":
            raise BadRequest(
                f"Tools of type '{tool.type}' run on the vendor's servers; only functions can be had here.",
                param=f"tools[{index}].type",
                code="unsupported_value",
            )


def _reasoning(data: Mapping[str, msgspec.Raw], *, effort: bool) -> None:
    """An effort that the model does not know, and summaries, which no model here writes."""
    reasoning = msgspec.json.decode(data.get("reasoning", b"null"))
    if not isinstance(reasoning, dict):
        return
    if not effort and reasoning.get("effort") not in (None, "none"):
        raise BadRequest(
            "This model knows no effort of reasoning: leave 'reasoning.effort' out.",
            param="reasoning.effort",
            code="unsupported_value",
        )
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) not in (None, "auto"):
            raise BadRequest(
                f"Thoughts are given as they are, not as a summary: leave 'reasoning.{name}' out.",
                param=f"reasoning.{name}",
                code="unsupported_value",
            )
