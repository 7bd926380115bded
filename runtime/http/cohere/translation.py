"""Translates Cohere's chat requests into vLLM's: messages, tools and options."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from models.messages import THINK
from registry.errors import BadRequest
from runtime.http.cohere.bodies import CohereChatBody, CohereContent, CohereMessage, CohereTool

Json = dict[str, Any]
NAMES = {
    "chat_template_kwargs": "thinking",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "thinking",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.token_budget",
    "top_k": "k",
    "top_p": "p",
}
"""Names of fields in translated bodies, with their names in Cohere's."""
CHOICES = {"REQUIRED": "required", "NONE": "none"}


def chat(body: CohereChatBody) -> Json:
    """The body for /v1/chat/completions. Raises BadRequest."""
    body.refuse()
    fields: Json = {
        "model": body.model,
        "messages": list(_messages(body.messages)),
        "stream": bool(body.stream),
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "seed": body.seed,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "top_k": body.k,
        "top_p": body.p,
        "tools": [_tool(tool, strict=bool(body.strict_tools)) for tool in body.tools or ()] or None,
        "tool_choice": CHOICES.get(body.tool_choice or ""),
    }
    result = {name: value for name, value in fields.items() if value is not None}
    if body.stream:
        result["stream_options"] = {"include_usage": True}
    if (form := body.response_format) is not None and form.type == "json_object":
        shape: Json = {"type": "json_object"}
        if (schema := form.json_schema if form.json_schema is not None else form.schema) is not None:
            shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        result["response_format"] = shape
    if (thinking := body.thinking) is not None:
        result |= {"reasoning_effort": "none"} if thinking.type == "disabled" else {"chat_template_kwargs": THINK}
        if thinking.type == "enabled" and thinking.token_budget is not None:
            result["thinking_token_budget"] = thinking.token_budget
    return result


def _tool(tool: CohereTool, *, strict: bool) -> Json:
    function = tool.function
    parts: Json = {"name": function.name, "description": function.description, "parameters": function.parameters}
    fields = {name: value for name, value in parts.items() if value is not None}
    return {"type": "function", "function": {**fields, "strict": True} if strict else fields}


def _messages(messages: Sequence[CohereMessage]) -> Iterator[Json]:
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        parts = message.content if isinstance(message.content, list) else []
        converted: Json = {"role": message.role}
        if message.role == "user":
            converted["content"] = [_part(part, where) for part in parts] if parts else message.content
        else:
            converted["content"] = "".join(_text(part, where) for part in parts) if parts else message.content
        if message.role == "tool":
            if message.tool_call_id is None:
                where = f"messages[{index}].tool_call_id"
                raise BadRequest(f"'{where}' is missing: send the id of the call whose result this is.", param=where)
            converted["tool_call_id"] = message.tool_call_id
        elif message.role == "assistant":
            converted["content"] = converted["content"] or message.tool_plan or converted["content"]
            if thoughts := "".join(part.thinking or "" for part in parts if part.type == "thinking"):
                converted["reasoning"] = thoughts
            if message.tool_calls:
                converted["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments or "{}"},
                    }
                    for call in message.tool_calls
                ]
        if converted["content"] is None and not message.tool_calls:
            raise BadRequest(f"'{where}' is missing: send a text.", param=where)
        yield converted


def _part(part: CohereContent, where: str) -> Json:
    """A part of a user's message."""
    if part.type == "image_url" and part.image_url is not None:
        detail = {} if part.image_url.detail is None else {"detail": part.image_url.detail}
        return {"type": "image_url", "image_url": {"url": part.image_url.url, **detail}}
    return {"type": "text", "text": _text(part, where)}


def _text(part: CohereContent, where: str) -> str:
    """The text of a part. A document gives its data as JSON. Thinking is handled elsewhere."""
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "document" and part.document is not None:
        data = part.document.data
        return data if isinstance(data, str) else msgspec.json.encode(data).decode()
    if part.type == "thinking":
        return ""
    raise BadRequest(f"'{where}' has a part of type '{part.type}' without its '{part.type}': send it.", param=where)
