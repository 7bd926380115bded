"""Fields that vLLM would accept and then ignore: refused here, as the vendors' own servers do.

vLLM's request classes, and the objects inside a request, keep unknown fields without a word, so a client would get
another answer than it asked for. A schema that lies where Text Generation Inference takes it (`value` of a
`json_object`) would bind nothing. Fields on which no answer depends are let through: clients send them by themselves.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from models.chat.requests import template
from models.chat.requests.request import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, VENDORS, ChatRequest
from registry.errors import BadRequest
from registry.recipes.fields import Flag

WITHOUT_EFFECT = frozenset(
    {
        "cache_control", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "user",
    }
)  # fmt: skip
"""Bookkeeping of the vendors, or hints for speed; the answer is the same without."""
PLAIN: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "function_call": ("none",),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "verbosity": ("medium",),
}
"""Values of unknown fields that mean what the engine does anyway."""
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
"""What to send instead of fields that earlier vLLMs, OpenAI's older clients and other servers know."""
EFFORT = ("reasoning_effort", "enable_thinking")
"""Variables of a chat template by which vLLM passes on a requested effort."""
CHAT_FORMATS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type"}),
    "json_object": frozenset({"type"}),
    "json_schema": frozenset({"type", "json_schema"}),
}
"""Fields of `response_format` by its type; vLLM refuses other types."""
SCHEMA = frozenset({"name", "description", "schema", "strict"})
RESPONSES_FORMATS: Mapping[str, frozenset[str]] = {**CHAT_FORMATS, "json_schema": SCHEMA | {"type"}}
"""Fields of `text.format` by its type."""
STREAM = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})
TEXT = frozenset({"format", "verbosity"})
SCHEMA_GOES = " A schema goes into response_format.json_schema.schema, with the type json_schema."
Fields = Mapping[str, frozenset[str]]
"""The fields that the engine knows, by path."""


def knows_effort(path: Path, flags: Mapping[str, Flag]) -> bool:
    """Whether the chat template of the model in folder `path` reads an effort; True where there is no template."""
    templates = template.texts(path, flags)
    return not templates or any(word in text for text in templates for word in EFFORT)


def known(app: Any, *, effort: bool = True, calls: bool = True) -> Fields:
    """The fields of each path's request class in vLLM's application, aliases included.

    Args:
        effort: the model's chat template reads an effort of reasoning; else vLLM would take it without effect.
        calls: there is a parser of the model's calls; else Responses would take tools without effect.
    """
    fields: dict[str, frozenset[str]] = {}
    for route in app.routes:
        path = getattr(route, "path", None)
        if path not in VENDORS:
            continue
        for kind in get_type_hints(route.endpoint).values():
            declared = getattr(kind, "model_fields", {})
            if "model" in declared:
                fields[path] = frozenset(declared) | {field.alias for field in declared.values() if field.alias}
    if CHAT in fields and not effort:
        fields[CHAT] -= {"reasoning_effort"}
    if RESPONSES in fields and not calls:
        fields[RESPONSES] -= {"tools"}
    if COUNT_TOKENS in fields:  # the count is the same whatever else the message asks for
        fields[COUNT_TOKENS] |= fields.get(MESSAGES, frozenset())
    return fields


def check(fields: Fields, request: ChatRequest) -> None:
    """Raise BadRequest for a field that the engine would ignore though it matters."""
    _check_typical(request)
    path = request.path
    if path not in fields:
        return
    for name in sorted(request.fields.keys() - fields[path] - WITHOUT_EFFECT):
        value = request.value(name)
        uncalled = name == "tools" and request.text("tool_choice") == "none"
        if uncalled or value in EMPTY or value in PLAIN.get(name, ()):
            continue
        text = f"Unrecognized request argument supplied: {name}."
        if path in (MESSAGES, COUNT_TOKENS):
            text = f"{name}: Extra inputs are not permitted."
        advice = INSTEAD.get(name, "leave it out.")
        raise BadRequest(f"{text} This engine would ignore it: {advice}", param=name, code="unknown_parameter")
    knows_effort = "reasoning_effort" in fields.get(CHAT, frozenset())
    if path in (CHAT, COMPLETIONS):
        _check_chat(request)
    elif path == RESPONSES:
        _check_responses(request, knows_effort)
    elif path == MESSAGES and not knows_effort and request.object("output_config").get("effort") is not None:
        raise BadRequest(
            "output_config.effort: this model knows no effort of reasoning: leave it out.",
            param="output_config.effort",
            code="unsupported_value",
        )


def _check_typical(request: ChatRequest) -> None:
    """Refuse typical decoding, which vLLM has not, unless the likeliest token is taken anyway."""
    if request.object("vllm_xargs").get("typical_p") in (None, 1) or request.value("temperature") == 0:
        return
    raise BadRequest(
        "This engine has no typical decoding: leave 'typical_p' out, or set it to null (None), or to 1, or ask for "
        "temperature 0.",
        param="typical_p",
        code="unsupported_value",
    )


def _check_chat(request: ChatRequest) -> None:
    """Check `response_format` and `stream_options` of Chat Completions or Completions."""
    answer = request.object("response_format")
    hint = SCHEMA_GOES if answer.get("type") == "json_object" else ""
    _only(answer, CHAT_FORMATS.get(str(answer.get("type")), answer), "response_format", hint)
    schema = answer.get("json_schema")
    if isinstance(schema, dict):
        _only(schema, SCHEMA, "response_format.json_schema")
    _only(request.object("stream_options"), STREAM, "stream_options")


def _check_responses(request: ChatRequest, knows_effort: bool) -> None:
    """Check what Responses has fields for that vLLM ignores: storage, truncation, the vendor's tools, summaries."""
    if request.is_true("store"):
        raise BadRequest(
            "Responses are not stored here. Leave 'store' out, and send the conversation as 'input'.",
            param="store",
            code="unsupported_value",
        )
    if request.has("previous_response_id"):
        raise BadRequest(
            "Responses are not stored here, so there is none to go on from. Leave 'previous_response_id' out, and send "
            "the conversation as 'input'.",
            param="previous_response_id",
            code="unsupported_value",
        )
    if request.value("truncation") not in (None, "disabled"):
        raise BadRequest(
            "An input that is too long is not cut to fit: leave 'truncation' out, and send less.",
            param="truncation",
            code="unsupported_value",
        )
    for index, tool in enumerate(_tools(request)):
        if isinstance(tool.type, str) and tool.type != "function":
            raise BadRequest(
                f"Tools of type '{tool.type}' run on the vendor's servers; only functions can be had here.",
                param=f"tools[{index}].type",
                code="unsupported_value",
            )
    _check_reasoning(request.object("reasoning"), knows_effort)
    text = request.object("text")
    _only(text, TEXT, "text")
    if text.get("verbosity") not in (None, "medium"):
        raise BadRequest(
            "No model here knows a verbosity: leave 'text.verbosity' out.",
            param="text.verbosity",
            code="unsupported_value",
        )
    form = text.get("format")
    if isinstance(form, dict):
        _only(form, RESPONSES_FORMATS.get(str(form.get("type")), form), "text.format")


class _Tool(msgspec.Struct):
    type: Any = None


def _tools(request: ChatRequest) -> list[_Tool]:
    try:
        return msgspec.json.decode(request.fields.get("tools", b"[]"), type=list[_Tool])
    except msgspec.ValidationError:
        return []  # vLLM refuses it


def _check_reasoning(reasoning: Mapping[str, Any], knows_effort: bool) -> None:
    """Refuse an effort that the model does not know, and summaries, which no model here writes."""
    if not knows_effort and reasoning.get("effort") not in (None, "none"):
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


def _only(fields: Mapping[str, Any], known: Iterable[str], at: str, hint: str = "") -> None:
    """Raise BadRequest for a field of the object at `at` that is not known and not null."""
    for name in sorted(fields.keys() - set(known)):
        if fields[name] is not None:
            raise BadRequest(
                f"Unrecognized request argument supplied: {at}.{name}. This engine would ignore it: leave it out."
                f"{hint}",
                param=f"{at}.{name}",
                code="unknown_parameter",
            )
