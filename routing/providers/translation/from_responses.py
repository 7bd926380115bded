"""Translates OpenAI's Responses to chat completions. Nothing is stored between turns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.errors import BadRequest
from routing.providers.translation.reading import (
    Fields,
    Json,
    fields,
    mapping,
    objects,
    present,
    text,
    unsupported,
    wrong,
)
from routing.providers.translation.response_answers import ResponseAnswers

DIRECT = {"type": "direct"}
"""The model calls a tool directly, not from code that it writes."""
FIELDS: Mapping[str, Fields] = {
    "request": fields(
        "model input instructions max_output_tokens temperature top_p stream tools tool_choice parallel_tool_calls text"
        " reasoning user",
        "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier stream_options",
        "access_programs context_management conversation image max_tool_calls moderation previous_response_id prompt",
        {
            "store": (False,),
            "background": (False,),
            "truncation": ("disabled",),
            "top_logprobs": (0,),
            "service_tier": ("auto", "default"),
            "include": ([], ["reasoning.encrypted_content"]),
        },
    ),
    "input[] (message)": fields("role content", "id phase status", "", {"type": ("message",)}),
    "content[] (input_text)": fields("type text", "prompt_cache_breakpoint"),
    "content[] (output_text)": fields("type text", "annotations logprobs"),
    "content[] (refusal)": fields("type refusal"),
    "content[] (input_image)": fields("type image_url detail", "prompt_cache_breakpoint", "file_id"),
    "content[] (input_file)": fields("type file_data filename", "detail prompt_cache_breakpoint", "file_id file_url"),
    "input[] (function_call)": fields(
        "type call_id name arguments", "id status", "namespace", {"async": (False,), "caller": (DIRECT,)}
    ),
    "input[] (function_call_output)": fields(
        "type call_id output", "id name status", "namespace", {"caller": (DIRECT,)}
    ),
    "input[] (reasoning)": fields("type", "id summary content encrypted_content status"),
    "tools[] (function)": fields(
        "type name description parameters strict",
        "",
        "output_schema",
        {"async": (False,), "defer_loading": (False,), "allowed_callers": (["direct"],)},
    ),
    "tool_choice (function)": fields("type name"),
    "text": fields("format", "", "", {"verbosity": ("medium",)}),
    "text.format (json_schema)": fields("type name description schema strict"),
    "reasoning": fields("effort", "generate_summary summary", "", {"context": ("auto",), "mode": ("standard",)}),
}
REFUSED: Mapping[str, str] = {
    "input[]": (
        "additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction compaction_trigger"
        " computer_call computer_call_output configuration_update custom_tool_call custom_tool_call_output"
        " file_search_call image_generation_call item_reference local_shell_call local_shell_call_output"
        " mcp_approval_request mcp_approval_response mcp_call mcp_list_tools program program_output shell_call"
        " shell_call_output tool_search_call tool_search_output web_search_call"
    ),
    "tools[]": (
        "apply_patch code_interpreter computer computer_use_preview custom file_search image_generation local_shell mcp"
        " namespace programmatic_tool_calling shell tool_search web_search web_search_2025_08_26 web_search_preview"
        " web_search_preview_2025_03_11"
    ),
    "tool_choice": (
        "allowed_tools apply_patch code_interpreter computer computer_use computer_use_preview custom file_search"
        " image_generation mcp programmatic_tool_calling shell web_search_preview"
        " web_search_preview_2025_03_11"
    ),
}
"""Kinds of objects without a counterpart: nothing is stored between requests, and no tools are run."""


PASSED_ON = ("temperature", "top_p", "parallel_tool_calls", "user")
NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of chat completions that have another name in Responses."""
_MESSAGE = re.compile(r"messages\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ChatTranslation:
    body: Json
    """The chat completion request without `model`."""
    answers: ResponseAnswers
    origins: list[str]
    """The client's field from which each message was made."""

    def in_client_terms(self, error: BadRequest) -> BadRequest:
        """Return an error about the chat completion request in terms of the client's fields."""
        if error.param is None:
            return error
        where = _MESSAGE.match(error.param)
        named = NAMES.get(error.param, error.param) if where is None else self.origins[int(where[1])]
        return BadRequest(error.message.replace(f"'{error.param}'", f"'{named}'"), code=error.code, param=named)


def translated(body: Mapping[str, Any]) -> ChatTranslation:
    """Translate a request. Raises BadRequest."""
    FIELDS["request"].check(body)
    turns = _Turns()
    if body.get("instructions"):
        turns.add("instructions", {"role": "system", "content": text(body["instructions"], "instructions")})
    turns.read(body.get("input"))
    request: Json = {"messages": turns.messages, **present(body, *PASSED_ON)}
    if body.get("max_output_tokens") is not None:
        request["max_completion_tokens"] = body["max_output_tokens"]
    if body.get("tools") is not None and (tools := objects(body["tools"], "tools")):
        request["tools"] = [_tool(tool, where) for where, tool in tools]
    if body.get("tool_choice") is not None:
        request["tool_choice"] = _tool_choice(body["tool_choice"])
    if body.get("text") is not None:
        request |= _format(FIELDS["text"].of(body["text"], "text"))
    reasoning = FIELDS["reasoning"].of(body.get("reasoning") or {}, "reasoning")
    if reasoning.get("effort") is not None:
        request["reasoning_effort"] = reasoning["effort"]
    if body.get("stream") is True:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    return ChatTranslation(request, ResponseAnswers(body), turns.origins)


def _format(options: Json) -> Json:
    form = mapping(options.get("format") or {"type": "text"}, "text.format")
    match form.get("type"):
        case "text":
            return {}
        case "json_schema":
            FIELDS["text.format (json_schema)"].check(form, "text.format")
            schema = {name: form[name] for name in ("name", "schema", "strict", "description") if name in form}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case _:
            raise wrong("text.format.type", "text, json_schema or json_object")


def _tool(tool: Json, where: str) -> Json:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", "the provider has no such tool")
    FIELDS["tools[] (function)"].check(tool, where)
    named = text(tool.get("name"), f"{where}.name")
    return {"type": "function", "function": {"name": named, **present(tool, "description", "parameters", "strict")}}


def _tool_choice(choice: object) -> str | Json:
    if isinstance(choice, str):
        return choice
    named = mapping(choice, "tool_choice")
    if named.get("type") != "function":
        raise unsupported("tool_choice.type")
    FIELDS["tool_choice (function)"].check(named, "tool_choice")
    return {"type": "function", "function": {"name": text(named.get("name"), "tool_choice.name")}}


# --- the conversation so far ------------------------------------------------------------------------------------------
class _Turns:
    """Collects messages from items. An assistant's text and its tool calls become one message."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.origins: list[str] = []

    def add(self, where: str, message: Json) -> None:
        self.messages.append(message)
        self.origins.append(where)

    def read(self, items: object) -> None:
        if isinstance(items, str):
            self.add("input", {"role": "user", "content": items})
            return
        for where, item in objects(items, "input"):
            kind = item.get("type", "message")
            if f"input[] ({kind})" not in FIELDS:
                raise unsupported(f"{where}.type", "nothing is stored between requests, and such tools are not run")
            FIELDS[f"input[] ({kind})"].check(item, where)
            match kind:
                case "message":
                    role = text(item.get("role"), f"{where}.role")
                    self.add(where, {"role": role, "content": _content(item.get("content"), f"{where}.content")})
                case "function_call":
                    self._called(where, item)
                case "function_call_output":
                    called = text(item.get("call_id"), f"{where}.call_id")
                    output = _content(item.get("output"), f"{where}.output")
                    self.add(where, {"role": "tool", "tool_call_id": called, "content": output})
                case "reasoning":
                    pass  # reasoning of earlier turns

    def _called(self, where: str, item: Json) -> None:
        function = {
            "name": text(item.get("name"), f"{where}.name"),
            "arguments": text(item.get("arguments"), f"{where}.arguments"),
        }
        call = {"id": text(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": function}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add(where, {"role": "assistant", "content": None})
        self.messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: object, where: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [_part(part, at) for at, part in objects(content, where)]


def _part(part: Json, where: str) -> Json:
    kind = part.get("type")
    if f"content[] ({kind})" not in FIELDS:
        raise unsupported(f"{where}.type")
    FIELDS[f"content[] ({kind})"].check(part, where)
    match kind:
        case "input_text" | "output_text":
            return {"type": "text", "text": text(part.get("text"), f"{where}.text")}
        case "refusal":
            return {"type": "refusal", "refusal": text(part.get("refusal"), f"{where}.refusal")}
        case "input_image":
            url = text(part.get("image_url"), f"{where}.image_url")
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": url, **detail}}
        case _:
            data = text(part.get("file_data"), f"{where}.file_data")
            return {"type": "file", "file": {"filename": part.get("filename") or "document", "file_data": data}}
