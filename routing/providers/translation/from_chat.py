"""Translates a chat completion request to Anthropic's messages."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from registry.base.json import NOT_JSON, Values
from registry.bounds import USUAL
from routing.providers.translation.chat_answers import ChatAnswers
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

FIELDS: Mapping[str, Fields] = {
    "request": fields(
        "model messages max_tokens max_completion_tokens temperature top_p stop stream stream_options tools tool_choice"
        " parallel_tool_calls user response_format reasoning_effort",
        "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier",
        "audio function_call functions logit_bias moderation prediction seed web_search_options",
        {
            "n": (1,),
            "frequency_penalty": (0,),
            "presence_penalty": (0,),
            "logprobs": (False,),
            "top_logprobs": (0,),
            "modalities": (["text"],),
            "store": (False,),
            "service_tier": ("auto", "default"),
            "verbosity": ("medium",),
        },
    ),
    "messages[] (system, developer)": fields("role content", "name cache_control"),
    "messages[] (user)": fields("role content", "name cache_control"),
    "messages[] (assistant)": fields(
        "role content refusal tool_calls",
        "name annotations cache_control parsed provider_specific_fields reasoning reasoning_content reasoning_details"
        " thinking_blocks",
        "audio function_call",
    ),
    "messages[] (tool)": fields("role content tool_call_id", "name cache_control"),
    "content[] (text)": fields("type text cache_control", "prompt_cache_breakpoint"),
    "content[] (refusal)": fields("type refusal"),
    "content[] (image_url)": fields("type image_url cache_control", "prompt_cache_breakpoint"),
    "content[].image_url": fields("url", "detail"),
    "content[] (file)": fields("type file cache_control", "prompt_cache_breakpoint"),
    "content[].file": fields("file_data filename", "", "file_id"),
    "tool_calls[] (function)": fields(
        "id function", "extra_content index provider_specific_fields", "", {"type": ("function",)}
    ),
    "tool_calls[].function": fields("name arguments", "parsed_arguments provider_specific_fields"),
    "tools[] (function)": fields("type function", "cache_control"),
    "tools[].function": fields("name description parameters strict", "cache_control"),
    "tool_choice (function)": fields("function", "", "", {"type": ("function",)}),
    "tool_choice.function": fields("name"),
    "response_format (json_schema)": fields("type json_schema"),
    "response_format.json_schema": fields("schema description", "name strict"),
    "stream_options": fields("include_usage", "include_obfuscation continuous_usage_stats"),
}
"""Includes fields of earlier answers that may be sent back: annotations, reasoning, values parsed by an SDK."""
REFUSED: Mapping[str, str] = {
    "messages[]": "function",
    "content[]": "input_audio",
    "tool_calls[]": "custom",
    "tools[]": "custom",
    "tool_choice": "allowed_tools custom",
    "response_format": "json_object",
}
"""Kinds of objects without a counterpart."""


EFFORTS = ("low", "medium", "high", "xhigh", "max")
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def translated(body: Mapping[str, Any], max_output: int) -> tuple[Json, ChatAnswers]:
    """Return Anthropic's body without `model`, and the translator of answers. Raises BadRequest."""
    FIELDS["request"].check(body)
    system, messages = _messages(body.get("messages"))
    bound = body.get("max_completion_tokens")
    bound = body.get("max_tokens") if bound is None else bound
    request: Json = {"max_tokens": max_output if bound is None else bound, "messages": messages}
    if system:
        request["system"] = system
    request |= present(body, "temperature", "top_p")
    if isinstance(request.get("temperature"), int | float) and request["temperature"] > 1:
        raise unsupported("temperature", "the provider's maximum is 1")
    if (stop := body.get("stop")) is not None:
        request["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if body.get("user") is not None:
        request["metadata"] = {"user_id": body["user"]}
    if body.get("tools"):
        request["tools"] = [_tool(tool, where) for where, tool in objects(body["tools"], "tools")]
    if (choice := _tool_choice(body)) is not None:
        request["tool_choice"] = choice
    if (form := body.get("response_format")) is not None:
        request |= _format(mapping(form, "response_format"))
    if (effort := body.get("reasoning_effort")) not in (None, "none"):  # it does not think without being asked
        if effort not in EFFORTS:
            raise unsupported("reasoning_effort", f"the provider accepts {', '.join(EFFORTS)}")
        request["output_config"] = {**request.get("output_config", {}), "effort": effort}
    stream = body.get("stream") is True
    if stream:
        request["stream"] = True
    options = FIELDS["stream_options"].of(body.get("stream_options") or {}, "stream_options")
    return request, ChatAnswers(options.get("include_usage") is True)


def _format(form: Json) -> Json:
    match form.get("type"):
        case "text":
            return {}
        case "json_schema":
            FIELDS["response_format (json_schema)"].check(form, "response_format")
            named = FIELDS["response_format.json_schema"].of(form.get("json_schema"), "response_format.json_schema")
            schema = mapping(named.get("schema"), "response_format.json_schema.schema")
            whole = present(named, "description") | schema
            return {"output_config": {"format": {"type": "json_schema", "schema": whole}}}
        case _:
            raise unsupported("response_format", "send a json_schema")


def _tool(tool: Json, where: str) -> Json:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type")
    FIELDS["tools[] (function)"].check(tool, where)
    function = FIELDS["tools[].function"].of(tool.get("function"), f"{where}.function")
    return {
        "name": text(function.get("name"), f"{where}.function.name"),
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
        **present(function, "description", "strict"),
    }


def _tool_choice(body: Mapping[str, Any]) -> Json | None:
    choice = body.get("tool_choice")
    translated_choice: Json | None = None
    if isinstance(choice, str):
        if choice not in CHOICES:
            raise wrong("tool_choice", "auto, none, required or a function")
        translated_choice = {"type": CHOICES[choice]}
    elif choice is not None:
        if mapping(choice, "tool_choice").get("type", "function") != "function":
            raise unsupported("tool_choice.type")
        FIELDS["tool_choice (function)"].check(choice, "tool_choice")
        function = FIELDS["tool_choice.function"].of(choice.get("function"), "tool_choice.function")
        translated_choice = {"type": "tool", "name": function.get("name")}
    if body.get("parallel_tool_calls") is False and body.get("tools"):
        translated_choice = translated_choice or {"type": "auto"}
        if translated_choice["type"] != "none":
            translated_choice["disable_parallel_tool_use"] = True
    return translated_choice


# --- messages --------------------------------------------------------------------------------------------------------
def _messages(value: object) -> tuple[list[Json], list[Json]]:
    """Return the system blocks and the turns. Adjacent messages of one role become one turn.

    Empty messages are omitted: Anthropic refuses them, although its own turns are sometimes empty.
    """
    system: list[Json] = []
    turns: list[Json] = []
    json_values = Values(USUAL.json_values)

    def add(role: str, blocks: list[Json]) -> None:
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})

    for where, message in objects(value, "messages"):
        content = message.get("content")
        match message.get("role"):
            case "system" | "developer":
                FIELDS["messages[] (system, developer)"].check(message, where)
                if turns:
                    raise unsupported(f"{where}.role", "the provider only accepts system messages first")
                system += _parts(content, f"{where}.content", texts_only=True)
            case "user":
                FIELDS["messages[] (user)"].check(message, where)
                add("user", _parts(content, f"{where}.content"))
            case "assistant":
                FIELDS["messages[] (assistant)"].check(message, where)
                add("assistant", _assistant(message, where, json_values))
            case "tool":
                FIELDS["messages[] (tool)"].check(message, where)
                called = _id(text(message.get("tool_call_id"), f"{where}.tool_call_id"))
                result = _parts(content, f"{where}.content")
                add("user", [{"type": "tool_result", "tool_use_id": called} | ({"content": result} if result else {})])
            case _:
                raise unsupported(f"{where}.role")
    return system, turns


def _assistant(message: Json, where: str, json_values: Values) -> list[Json]:
    """Return a turn's blocks. json_values: bounds the JSON in the arguments of all calls. Raises TooLarge."""
    content = message.get("content")
    blocks: list[Json] = [] if content is None else _parts(content, f"{where}.content", texts_only=True)
    if message.get("refusal"):
        blocks.append({"type": "text", "text": text(message["refusal"], f"{where}.refusal")})
    for at, call in objects(message.get("tool_calls") or [], f"{where}.tool_calls"):
        if call.get("type", "function") != "function":
            raise unsupported(f"{at}.type")
        FIELDS["tool_calls[] (function)"].check(call, at)
        function = FIELDS["tool_calls[].function"].of(call.get("function"), f"{at}.function")
        try:
            arguments = function.get("arguments") or "{}"
            json_values.add(arguments.encode())
            decoded = msgspec.json.decode(arguments, type=dict[str, Any])
        except (TypeError, AttributeError, *NOT_JSON):
            raise wrong(f"{at}.function.arguments", "an object as JSON in a string") from None
        blocks.append({"type": "tool_use", "id": _id(call.get("id")), "name": function.get("name"), "input": decoded})
    return blocks


def _id(call_id: Any) -> Any:
    """Return an id with the characters that Anthropic accepts. Kimi's look like `functions.f:0`."""
    return _NOT_IN_IDS.sub("_", call_id) if isinstance(call_id, str) else call_id


def _parts(content: object, where: str, *, texts_only: bool = False) -> list[Json]:
    """Return parts without blank texts, which Anthropic refuses and many tools return."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    blocks = [_part(part, at, texts_only=texts_only) for at, part in objects(content, where)]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _part(part: Json, at: str, *, texts_only: bool) -> Json:
    kind = part.get("type")
    if f"content[] ({kind})" not in FIELDS or (texts_only and kind not in ("text", "refusal")):
        raise unsupported(f"{at}.type")
    FIELDS[f"content[] ({kind})"].check(part, at)
    if kind == "image_url":
        image = FIELDS["content[].image_url"].of(part.get("image_url"), f"{at}.image_url")
        url = text(image.get("url"), f"{at}.image_url.url")
        block: Json = {"type": "image", "source": _source(url, f"{at}.image_url.url")}
    elif kind == "file":
        file = FIELDS["content[].file"].of(part.get("file"), f"{at}.file")
        data = text(file.get("file_data"), f"{at}.file.file_data")
        block = {"type": "document", "source": _source(data, f"{at}.file.file_data")}
        if file.get("filename") is not None:
            block["title"] = file["filename"]
    else:
        block = {"type": "text", "text": text(part.get(str(kind)), f"{at}.{kind}")}
    return block | ({"cache_control": part["cache_control"]} if part.get("cache_control") else {})


def _source(url: str, where: str) -> Json:
    if url.startswith("https://"):
        return {"type": "url", "url": url}
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise unsupported(where, "send an https URL, or a data URL in base64")
    return {"type": "base64", "media_type": head[len("data:") : -len(";base64")], "data": data}
