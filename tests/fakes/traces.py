"""Answers in the form of OpenAI's and Anthropic's servers, for `tests.fakes.provider`."""

import json
from typing import Any

from tests.fakes.provider import Play

EVENTS = "text/event-stream; charset=utf-8"
WORDS = ("hello", " there")
TOOL_ARGUMENTS = '{"city":"Rome"}'


def _data(value: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


# --- OpenAI ----------------------------------------------------------------------------------------------------------
CHAT_USAGE = {
    "prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 4},
}  # fmt: skip
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": TOOL_ARGUMENTS}}


def chat(
    model: str,
    text: str = "hello there",
    tool: bool = False,
    finish: str | None = None,
    arguments: str = TOOL_ARGUMENTS,
) -> Play:
    """Return a chat answer.

    finish: another finish reason than usual, such as `stop` after a forced call.
    """
    message: dict[str, Any] = {"role": "assistant", "content": None if tool else text}
    if tool:
        message["tool_calls"] = [{**CALL, "function": {"name": "weather", "arguments": arguments}}]
    choice = {"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if tool else "stop")}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
    return Play([json.dumps({**body, "choices": [choice], "usage": CHAT_USAGE}).encode()])


def chat_events(
    model: str,
    tool: bool = False,
    finish: str | None = None,
    arguments: str = TOOL_ARGUMENTS,
) -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: Any, reason: str | None = None) -> bytes:
        return _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    chunks = [chunk({"content": word}) for word in WORDS]
    if tool:
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        rest = {"index": 0, "function": {"arguments": arguments}}
        chunks = [chunk({"tool_calls": [first]}), chunk({"tool_calls": [rest]})]
    usage = _data({**head, "choices": [], "usage": CHAT_USAGE})
    start, end = chunk({"role": "assistant", "content": ""}), chunk({}, finish or ("tool_calls" if tool else "stop"))
    return [start, *chunks, end, usage, b"data: [DONE]\n\n"]


def chat_stream(model: str, tool: bool = False, finish: str | None = None, arguments: str = TOOL_ARGUMENTS) -> Play:
    return Play(chat_events(model, tool, finish, arguments), content_type=EVENTS)


# --- Anthropic -------------------------------------------------------------------------------------------------------
MESSAGE_USAGE = {
    "input_tokens": 8, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
}  # fmt: skip


def message(model: str, text: str = "hello there", tool: bool = False, arguments: str = TOOL_ARGUMENTS) -> Play:
    block: dict[str, Any] = {"type": "text", "text": text}
    if tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": json.loads(arguments or "{}")}
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [block],
        "stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None, "usage": MESSAGE_USAGE,
    }  # fmt: skip
    return Play([json.dumps(body).encode()])


def message_events(model: str, tool: bool = False, arguments: str = TOOL_ARGUMENTS) -> list[bytes]:
    began = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {**MESSAGE_USAGE, "output_tokens": 1},
    }  # fmt: skip
    block: dict[str, Any] = {"type": "text", "text": ""}
    deltas: list[dict[str, str]] = [{"type": "text_delta", "text": word} for word in WORDS]
    if tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in (arguments[:5], arguments[5:])]
    ended = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": began},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    return [_data(event, event["type"]) for event in events]


def message_stream(model: str, tool: bool = False, arguments: str = TOOL_ARGUMENTS) -> Play:
    return Play(message_events(model, tool, arguments), content_type=EVENTS)


# --- both ------------------------------------------------------------------------------------------------------------
def error(status: int, kind: str = "server_error", code: str | None = None, **headers: str) -> Play:
    body = {"error": {"message": "no luck", "type": kind, "code": code, "param": None}}
    return Play([json.dumps(body).encode()], status=status, headers=headers)
