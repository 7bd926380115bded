"""Translates a request of Anthropic's messages to chat completions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from routing.providers.translation.message_answers import MessageAnswers
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

DIRECT = {"type": "direct"}
"""The model calls a tool directly, not from code that it writes."""
FIELDS: Mapping[str, Fields] = {
    "request": fields(
        "model messages max_tokens system stop_sequences stream temperature top_p top_k tools tool_choice metadata"
        " output_config",
        "cache_control",
        "container diagnostics inference_geo user_profile_id workspace_id",
        {
            "thinking": ({"type": "disabled"},),
            "service_tier": ("auto", "standard_only"),
            "speed": ("standard",),
        },
    ),
    "messages[] (user)": fields("role content"),
    "messages[] (assistant)": fields("role content"),
    "messages[] (system)": fields("role content"),
    "content[] (text)": fields("type text", "cache_control citations"),
    "content[] (image)": fields("type source", "cache_control", "", {"transformations": ({},)}),
    "content[] (document)": fields(
        "type source title", "cache_control", "context", {"citations": ({"enabled": False},)}
    ),
    "source (base64)": fields("type media_type data"),
    "source (url)": fields("type url"),
    "content[] (tool_use)": fields("type id name input", "cache_control", "toolset_name", {"caller": (DIRECT,)}),
    "content[] (tool_result)": fields("type tool_use_id content is_error", "cache_control", "toolset_name"),
    "content[] (thinking)": fields("type", "thinking signature"),
    "content[] (redacted_thinking)": fields("type", "data"),
    "tools[] (custom)": fields(
        "name description input_schema strict",
        "cache_control eager_input_streaming",
        "input_examples",
        {"type": ("custom",), "defer_loading": (False,), "allowed_callers": (["direct"],)},
    ),
    "tool_choice": fields("type name disable_parallel_tool_use"),
    "metadata": fields("user_id"),
    "output_config": fields("format effort"),
    "output_config.format (json_schema)": fields("schema", "", "", {"type": ("json_schema",)}),
}
REFUSED: Mapping[str, str] = {
    "content[]": (
        "bash_code_execution_tool_result code_execution_tool_result container_upload search_result server_tool_use"
        " text_editor_code_execution_tool_result tool_search_tool_result web_fetch_tool_result web_search_tool_result"
    ),
    "content[].content[] (tool_result)": "browser_state document image search_result tool_reference",
    "source (image)": "file",
    "source (document)": "content file text url",
    "tools[]": "",
}
"""Kinds of objects without a counterpart. All tools that Anthropic runs are refused, under any name."""


CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THOUGHTS = ("thinking", "redacted_thinking")


def translated(body: Mapping[str, Any]) -> tuple[Json, MessageAnswers]:
    """Return OpenAI's body without `model`, and the translator of answers. Raises BadRequest."""
    FIELDS["request"].check(body)
    messages: list[Json] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _texts(body["system"], "system")})
    for where, message in objects(body.get("messages"), "messages"):
        role = message.get("role")
        if f"messages[] ({role})" not in FIELDS:
            raise wrong(f"{where}.role", "user, assistant or system")
        FIELDS[f"messages[] ({role})"].check(message, where)
        match role:
            case "user":
                messages += _user(message.get("content"), f"{where}.content")
            case "assistant":
                messages.append(_assistant(message.get("content"), f"{where}.content"))
            case _:
                messages.append({"role": "system", "content": _texts(message.get("content"), f"{where}.content")})
    request: Json = {"messages": messages}
    if body.get("max_tokens") is None:
        raise wrong("max_tokens", "a whole number")
    request["max_completion_tokens"] = body["max_tokens"]
    request |= present(body, "temperature", "top_p", "top_k")
    if body.get("stop_sequences"):
        request["stop"] = body["stop_sequences"]
    metadata = FIELDS["metadata"].of(body.get("metadata") or {}, "metadata")
    if metadata.get("user_id") is not None:
        request["user"] = metadata["user_id"]
    if body.get("tools"):
        request["tools"] = [_tool(tool, where) for where, tool in objects(body["tools"], "tools")]
    if body.get("tool_choice") is not None:
        request |= _tool_choice(FIELDS["tool_choice"].of(body["tool_choice"], "tool_choice"))
    if body.get("output_config") is not None:
        request |= _format(FIELDS["output_config"].of(body["output_config"], "output_config"))
    if body.get("stream") is True:
        request["stream"] = True
    return request, MessageAnswers()


def _format(config: Json) -> Json:
    fields: Json = {}
    if config.get("effort") is not None:
        fields["reasoning_effort"] = config["effort"]
    if config.get("format") is not None:
        form = FIELDS["output_config.format (json_schema)"].of(config["format"], "output_config.format")
        schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _tool(tool: Json, where: str) -> Json:
    if tool.get("type") not in (None, "custom"):
        raise unsupported(f"{where}.type", "the provider has no such tool")
    FIELDS["tools[] (custom)"].check(tool, where)
    function = {
        "name": text(tool.get("name"), f"{where}.name"),
        "parameters": mapping(tool.get("input_schema"), f"{where}.input_schema"),
        **present(tool, "description", "strict"),
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: Json) -> Json:
    kind = choice.get("type")
    if kind == "tool":
        fields: Json = {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    elif kind in CHOICES:
        fields = {"tool_choice": CHOICES[kind]}
    else:
        raise wrong("tool_choice.type", "auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


# --- messages --------------------------------------------------------------------------------------------------------
def _texts(content: object, where: str) -> str:
    """Return a string, or text blocks joined into one."""
    if isinstance(content, str):
        return content
    texts = []
    for at, block in objects(content, where):
        if block.get("type") != "text":
            raise unsupported(f"{at}.type")
        FIELDS["content[] (text)"].check(block, at)
        texts.append(text(block.get("text"), f"{at}.text"))
    return "\n\n".join(texts)


def _user(content: object, where: str) -> list[Json]:
    """Return a user's turn. Tool results become separate messages, and come first."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[Json] = []
    parts: list[Json] = []
    for at, block in _blocks(content, where):
        match block["type"]:
            case "text":
                parts.append({"type": "text", "text": text(block.get("text"), f"{at}.text")})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": _url(block, at)}})
            case "document":
                source = mapping(block.get("source"), f"{at}.source")
                if source.get("type") != "base64":
                    raise unsupported(f"{at}.source.type")
                file: Json = {"filename": block.get("title") or "document", "file_data": _url(block, at)}
                parts.append({"type": "file", "file": file})
            case "tool_result":
                results.append(_result(block, at))
            case _:
                raise unsupported(f"{at}.type")
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    message = {"role": "user", "content": parts[0]["text"] if is_text else parts}
    return [*results, message] if parts else results


def _blocks(content: object, where: str) -> list[tuple[str, Json]]:
    """Return the blocks with their paths. Refuses unknown kinds and fields that cannot be translated."""
    blocks = objects(content, where)
    for at, block in blocks:
        kind = block.get("type")
        if f"content[] ({kind})" not in FIELDS:
            raise unsupported(f"{at}.type")
        FIELDS[f"content[] ({kind})"].check(block, at)
    return blocks


def _result(block: Json, where: str) -> Json:
    content = "" if block.get("content") is None else _texts(block["content"], f"{where}.content")
    if block.get("is_error") is True:
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": text(block.get("tool_use_id"), f"{where}.tool_use_id"), "content": content}


def _url(block: Json, where: str) -> str:
    source = mapping(block.get("source"), f"{where}.source")
    kind = source.get("type")
    if f"source ({kind})" not in FIELDS:
        raise unsupported(f"{where}.source.type")
    FIELDS[f"source ({kind})"].check(source, f"{where}.source")
    if kind == "url":
        return text(source.get("url"), f"{where}.source.url")
    data = text(source.get("data"), f"{where}.source.data")
    return f"data:{text(source.get('media_type'), f'{where}.source.media_type')};base64,{data}"


def _assistant(content: object, where: str) -> Json:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    calls: list[Json] = []
    for at, block in _blocks(content, where):
        kind = block["type"]
        if kind == "text":
            texts.append(text(block.get("text"), f"{at}.text"))
        elif kind == "tool_use":
            arguments = msgspec.json.encode(mapping(block.get("input"), f"{at}.input")).decode()
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in THOUGHTS:
            raise unsupported(f"{at}.type")
    message: Json = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    return message | ({"tool_calls": calls} if calls else {})
