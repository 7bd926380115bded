"""Fields that vLLM accepts and ignores: left out with a warning, or refused.

vLLM's request classes, and the objects inside a request, silently accept unknown fields.

| the field                                             | what happens                                              |
|-------------------------------------------------------|-----------------------------------------------------------|
| changes no answer (`WITHOUT_EFFECT`)                  | passes silently, because clients send it by themselves    |
| is unknown, or requests something optional (`HINTS`)  | is left out with a warning that names it; refused if      |
|                                                       | `strict`                                                  |
| is known to change answers (`replacements`, or a      | is refused by name, because the client would get another  |
| field that another dialect of the engine has)         | answer than it requested                                  |

Fields that vLLM has under another name are moved there first (`models.chat.requests.moves`).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from models.chat.requests import moves, replacements, template
from models.chat.requests.request import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    MESSAGES,
    RESPONSES,
    VENDORS,
    ChatRequest,
    begins,
)
from models.chat.vllm.answers.required_calls import DEEPEST, NAMED, VALUES
from registry.errors import BadRequest
from registry.recipes.fields import Flag

WITHOUT_EFFECT = frozenset(
    {
        "cache_control", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "user",
    }
)  # fmt: skip
"""Bookkeeping of the vendors, or hints for speed. The answer is the same without them."""
PLAIN: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "extra_body": ({},),
    "format": ("",),
    "function_call": ("none",),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "verbosity": ("medium",),
}
"""Values of unknown fields that request what the engine does anyway."""
HINTS = frozenset(
    {
        "include", "max_tool_calls", "reasoning", "reasoning_effort", "store", "stream_options", "thinking",
        "truncation", "verbosity",
    }
)  # fmt: skip
"""Fields of one dialect that request something optional in another."""
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    CHAT: {"reasoning_effort": "where the model knows no effort"},
    RESPONSES: {
        "include": "of the tools below",
        "truncation": "unless `disabled`",
        "reasoning.effort": "where the model knows no effort",
        "reasoning.summary": "unless `auto`",
        "reasoning.generate_summary": "unless `auto`",
        "text.verbosity": "unless `medium`",
    },
    MESSAGES: {"output_config.effort": "where the model knows no effort"},
}
"""Fields that a dialect's class has but that are still left out, and when."""
INNER: Mapping[str, tuple[str, ...]] = {
    CHAT: ("response_format", "response_format.json_schema", "stream_options"),
    COMPLETIONS: ("response_format", "response_format.json_schema", "stream_options"),
    RESPONSES: ("text", "text.format"),
}
"""Objects whose unknown fields are left out, too."""
BUDGET = "thinking_token_budget"
"""vLLM's bound on the tokens of reasoning."""
HOSTED = re.compile(
    r"(web_search|web_fetch|file_search|code_interpreter|code_execution|image_generation|computer|mcp|tool_search"
    r"|advisor|programmatic)"
)
"""Tools that run on a vendor's own servers, by the prefix of their type."""
EMPTY: tuple[object, ...] = (None, [])
EFFORT = ("reasoning_effort", "enable_thinking")
"""Variables of a chat template through which vLLM passes a requested effort."""
UNSTORED: Mapping[str, str] = {
    "previous_response_id": "send the conversation as 'input'",
    "background": "wait for the answer, or stream it",
}
"""Fields of Responses for stored answers, and what to do instead. If the gateway stores answers, it removes them."""
CHAT_FORMATS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type"}),
    "json_object": frozenset({"type"}),
    "json_schema": frozenset({"type", "json_schema"}),
}
"""Fields of `response_format` by its type; vLLM refuses other types."""
SCHEMA = frozenset({"name", "description", "schema", "strict"})
RESPONSES_FORMATS: Mapping[str, frozenset[str]] = {**CHAT_FORMATS, "json_schema": SCHEMA | {"type"}}
"""Fields of `text.format` by its type."""
FUNCTIONS = re.compile(r"function|custom|local_shell|shell|apply_patch|namespace|(bash|text_editor|memory)_\d+")
"""Types of tools that the client runs (see `client_tools`)."""
MOST_NAMED = 8
UNKNOWN = "unknown_parameter"
"""The code for a field that the engine does not have."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_UNIQUE = b'"uniqueItems"'
_REFERENCE, _NONE = b'"item_reference"', msgspec.Raw(b"[]")
STREAM = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})
TEXT = frozenset({"format", "verbosity"})
Fields = Mapping[str, frozenset[str]]
"""The fields that the engine supports, by path."""


def knows_effort(path: Path, flags: Mapping[str, Flag]) -> bool:
    """Return whether the chat template of the model in folder `path` reads an effort; True if there is no template."""
    templates = template.texts(path, flags)
    return not templates or any(word in text for text in templates for word in EFFORT)


def known(app: Any, *, effort: bool = True, calls: bool = True, budget: bool = True) -> Fields:
    """Return the fields of each path's request class in vLLM's application, including aliases.

    Args:
        effort: whether the chat template reads a reasoning effort; otherwise vLLM accepts it without effect.
        calls: whether there is a parser for the model's calls; otherwise Responses accepts tools without effect.
        budget: whether the engine recognises reasoning; otherwise vLLM refuses to bound it, in streams only once they
            have begun.
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
    if not budget:
        for path in {CHAT, COMPLETIONS} & fields.keys():
            fields[path] -= {BUDGET}
    if COUNT_TOKENS in fields:  # other fields of the message do not change the count
        fields[COUNT_TOKENS] |= fields.get(MESSAGES, frozenset())
    return fields


class Leniency:
    """Leaves out hints and collects their names, or refuses them if the client or the recipe is strict."""

    def __init__(self, request: ChatRequest, *, strict: bool) -> None:
        self._request, self.strict = request, strict
        self.left_out: list[str] = []

    def leave_out(self, advice: str, *path: str, code: str = "unsupported_value") -> None:
        """Drop the field at `path`, or raise BadRequest with this advice and code."""
        name = ".".join(path)
        if self.strict:
            raise BadRequest(advice, param=name, code=code)
        self._request.drop(*path)
        self.left_out.append(name if _PLAIN_NAME.fullmatch(name) else "a field of no plain name")

    def warning(self) -> str:
        """Return the names of the fields left out, for a header; '' if there are none."""
        if not self.left_out:
            return ""
        few = ", ".join(self.left_out[:MOST_NAMED])
        more = f" and {len(self.left_out) - MOST_NAMED} more" if len(self.left_out) > MOST_NAMED else ""
        return f"left out, as this engine does not know them: {few}{more}"


def check(fields: Fields, request: ChatRequest, *, strict: bool = False) -> str:
    """Leave out hints and return a warning that names them.

    Raises BadRequest for a field that the engine would ignore though it changes the answer.
    """
    _check_typical(request)
    path = request.path
    if path not in fields:
        return ""
    moves.move(request)
    hints = Leniency(request, strict=strict)
    _check_unknown(fields, request, hints)
    if path in (CHAT, RESPONSES, MESSAGES) and not strict:
        _relax_tools(request, hints)
    knows_effort = "reasoning_effort" in fields.get(CHAT, frozenset())
    if path == MESSAGES and BUDGET not in fields.get(CHAT, frozenset()):
        _check_budget(request)
    if path in (CHAT, COMPLETIONS):
        _check_chat(request, hints)
    elif path == RESPONSES:
        _check_responses(request, hints, knows_effort)
    elif path in (MESSAGES, COUNT_TOKENS):
        _check_messages(request, hints, knows_effort)
    return hints.warning()


def _relax_tools(request: ChatRequest, hints: Leniency) -> None:
    """Leave `uniqueItems`, which no grammar enforces, out of tools that must be called but do not ask for `strict`."""
    choice = request.object("tool_choice").get("type")
    is_forced = request.requires_call() or choice not in (None, "auto", "none")
    if not is_forced or _UNIQUE not in bytes(request.fields.get("tools", _NONE)):
        return
    tools = request.value("tools")
    relaxed = _without_unique(tools)
    if relaxed != tools:
        request.replace("tools", msgspec.json.encode(relaxed))
        hints.left_out.append("uniqueItems of tools")


def _without_unique(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST or (isinstance(value, dict) and value.get("strict") is True):
        return value
    if isinstance(value, list):
        return [_without_unique(one, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, one in value.items():
        if name in NAMED and isinstance(one, dict):
            result[name] = {key: _without_unique(inner, depth + 1) for key, inner in one.items()}
        elif name in VALUES or (name, one) != ("uniqueItems", True):
            result[name] = one if name in VALUES else _without_unique(one, depth + 1)
    return result


def _check_unknown(fields: Fields, request: ChatRequest, hints: Leniency) -> None:
    """Check the fields that the request class of this path lacks."""
    path = request.path
    unknown = sorted(request.fields.keys() - fields[path] - WITHOUT_EFFECT)
    if not unknown:  # the usual case; the rest reads all fields of all paths
        return
    answering = frozenset().union(*fields.values()) | replacements.names(path) | PLAIN.keys()
    for name in unknown:
        value = request.value(name)
        uncalled = name == "tools" and request.text("tool_choice") == "none"
        if uncalled or value in EMPTY or value in PLAIN.get(name, ()):
            continue
        text = f"Unrecognized request argument supplied: {name}."
        if path in (MESSAGES, COUNT_TOKENS):
            text = f"{name}: Extra inputs are not permitted."
        advice = replacements.advice(path, name)
        error = BadRequest(f"{text} This engine would ignore it: {advice}", param=name, code=UNKNOWN)
        if name in answering and name not in HINTS:
            raise error
        hints.leave_out(error.message, name, code=UNKNOWN)


def _check_typical(request: ChatRequest) -> None:
    """Refuse typical decoding, which vLLM lacks, unless the likeliest token is taken anyway."""
    shares = request.value("typical_p"), request.object("vllm_xargs").get("typical_p")
    if request.value("temperature") != 0 and any(share not in (None, 1) for share in shares):
        raise BadRequest(
            "This engine has no typical decoding: leave 'typical_p' out, or set it to null (None), or to 1, or ask for "
            "temperature 0.",
            param="typical_p",
            code="unsupported_value",
        )
    if "typical_p" in request.fields:
        request.drop("typical_p")


def _check_chat(request: ChatRequest, hints: Leniency) -> None:
    """Check `response_format` and `stream_options` of Chat Completions or Completions."""
    answer = request.object("response_format")
    _only(answer, CHAT_FORMATS.get(str(answer.get("type")), answer), hints, "response_format")
    schema = answer.get("json_schema")
    if isinstance(schema, dict):
        _only(schema, SCHEMA, hints, "response_format", "json_schema")
        if answer.get("type") == "json_schema" and schema.get("schema") is None:
            raise BadRequest(
                "response_format.json_schema has no 'schema': send one, or the type 'json_object'.",
                param="response_format.json_schema.schema",
                code="invalid_value",
            )
    _only(request.object("stream_options"), STREAM, hints, "stream_options")


def _check_budget(request: ChatRequest) -> None:
    """Refuse a budget of thinking that the engine cannot keep."""
    thinking = request.object("thinking")
    if thinking.get("type") == "enabled" and thinking.get("budget_tokens") is not None:
        param = "thinking.budget_tokens"
        raise BadRequest(f"{param}: {replacements.PARSES_NO_REASONING}", param=param, code="unsupported_value")


def _check_messages(request: ChatRequest, hints: Leniency, knows_effort: bool) -> None:
    """Check the effort and the tools of Messages."""
    if not knows_effort and request.object("output_config").get("effort") is not None:
        advice = "output_config.effort: this model knows no effort of reasoning: leave it out."
        hints.leave_out(advice, "output_config", "effort")
    _check_tools(request, hints)
    if request.object("tool_choice").get("type") in ("any", "tool") and not request.items("tools"):
        raise BadRequest(
            "tool_choice: it demands a call, but there are no 'tools': send some, or leave it out.",
            param="tool_choice",
            code="invalid_value",
        )


def _check_responses(request: ChatRequest, hints: Leniency, knows_effort: bool) -> None:
    """Check the fields of Responses that vLLM ignores: storage, truncation, the vendor's tools, summaries."""
    if request.is_true("store"):
        raise BadRequest(
            "Responses are not stored here. Leave 'store' out, and send the conversation as 'input'.",
            param="store",
            code="unsupported_value",
        )
    for name, advice in UNSTORED.items():
        if request.is_on(name):
            raise BadRequest(
                f"Responses are not stored for you here: leave '{name}' out, and {advice}. An operator can have them "
                "stored (--store-responses).",
                param=name,
                # at OpenAI's code for an unknown response, clients such as GitHub Copilot resend the whole conversation
                code="previous_response_not_found" if name == "previous_response_id" else "unsupported_value",
            )
    _check_references(request)
    if request.value("truncation") not in (None, "disabled"):
        advice = "An input that is too long is not cut to fit: leave 'truncation' out, and send less."
        hints.leave_out(advice, "truncation")
    _check_tools(request, hints)
    _check_include(request, hints)
    _check_reasoning(request, hints, knows_effort)
    text = request.object("text")
    _only(text, TEXT, hints, "text")
    if text.get("verbosity") not in (None, "medium"):
        hints.leave_out("No model here knows a verbosity: leave 'text.verbosity' out.", "text", "verbosity")
    form = text.get("format")
    if isinstance(form, dict):
        _only(form, RESPONSES_FORMATS.get(str(form.get("type")), form), hints, "text", "format")


def _check_references(request: ChatRequest) -> None:
    """Refuse references to items of earlier answers, with better advice than vLLM's."""
    if _REFERENCE not in bytes(request.fields.get("input", _NONE)):
        return
    for index, item in enumerate(request.items("input")):
        if begins(item, b"{") and msgspec.json.decode(item, type=_Tool).type == "item_reference":
            raise BadRequest(
                "Responses are not stored for you here, so no item can be named by an 'item_reference': send the item "
                "itself. In Vercel's AI SDK set providerOptions: {openai: {store: false}}, or use openai.chat(model). "
                "An operator can have responses stored (--store-responses).",
                param=f"input[{index}]",
                code="unsupported_value",
            )


class _Tool(msgspec.Struct):
    type: Any = None
    name: Any = None


def _check_tools(request: ChatRequest, hints: Leniency) -> None:
    """Leave out tools that run on a vendor's servers; refuse those that `tool_choice` requires, and unknown types."""
    if "tools" not in request.fields:
        return
    try:
        tools = msgspec.json.decode(request.fields["tools"], type=list[_Tool])
    except msgspec.ValidationError:
        return  # vLLM refuses it
    hosted = []
    for index, tool in enumerate(tools):
        if not isinstance(tool.type, str) or FUNCTIONS.fullmatch(tool.type):
            continue
        param = f"tools[{index}].type"
        if not HOSTED.match(tool.type):
            raise BadRequest(
                f"Tools of type '{tool.type}' are not known here: send a function in its place.",
                param=param,
                code="unsupported_value",
            )
        error = BadRequest(
            f"Tools of type '{tool.type}' run on the vendor's servers; only functions are available here.",
            param=param,
            code="unsupported_value",
        )
        if hints.strict or _demands(request, tool):
            raise error
        hosted.append((index, tool.type))
    if not hosted:
        return
    gone = {index for index, _ in hosted}
    left = [item for index, item in enumerate(request.items("tools")) if index not in gone]
    if left:
        request.replace("tools", msgspec.json.encode(left))
    elif request.requires_call():
        index, kind = hosted[0]
        raise BadRequest(
            f"Tools of type '{kind}' run on the vendor's servers, and 'tool_choice' demands a call: send a function.",
            param=f"tools[{index}].type",
            code="unsupported_value",
        )
    else:
        request.drop("tools")
        if "tool_choice" in request.fields:
            request.drop("tool_choice")
    hints.left_out += sorted({f"tools of type {kind}" for _, kind in hosted if _PLAIN_NAME.fullmatch(kind)})


def _demands(request: ChatRequest, tool: _Tool) -> bool:
    """Whether `tool_choice` names this tool."""
    choice = request.object("tool_choice")
    return choice.get("type") == tool.type or (tool.name is not None and choice.get("name") == tool.name)


def _check_include(request: ChatRequest, hints: Leniency) -> None:
    """Leave out what the answer should include of tools that run on the vendor's servers.

    Vercel's AI SDK asks for it whenever it sends such a tool.
    """
    include = request.value("include")
    if not isinstance(include, list):
        return  # vLLM refuses it
    left = [name for name in include if not (isinstance(name, str) and HOSTED.match(name))]
    if left == include:
        return
    advice = "Only functions are available here: leave what belongs to the vendor's tools out of 'include'."
    hints.leave_out(advice, "include")
    if left:
        request.replace("include", msgspec.json.encode(left))


def _check_reasoning(request: ChatRequest, hints: Leniency, knows_effort: bool) -> None:
    """Leave out an effort that the model does not support, and summaries, which no model here writes."""
    reasoning = request.object("reasoning")
    if not knows_effort and reasoning.get("effort") not in (None, "none"):
        advice = "This model knows no effort of reasoning: leave 'reasoning.effort' out."
        hints.leave_out(advice, "reasoning", "effort")
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) not in (None, "auto"):
            advice = f"Thoughts are given as they are, not as a summary: leave 'reasoning.{name}' out."
            hints.leave_out(advice, "reasoning", name)


def _only(fields: Mapping[str, Any], known: Iterable[str], hints: Leniency, *at: str) -> None:
    """Leave out each unknown field of the object at `at` that is not null."""
    for name in sorted(fields.keys() - set(known)):
        if fields[name] is not None:
            param = ".".join((*at, name))
            advice = f"Unrecognized request argument supplied: {param}. This engine would ignore it: leave it out."
            hints.leave_out(advice, *at, name, code=UNKNOWN)
