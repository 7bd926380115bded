"""Complete the messages of Chat Completions that vLLM's classes refuse, though their meaning is clear.

A call's arguments are JSON text in OpenAI's API. Clients that also speak to Ollama send them as an object.
"""

import re
from typing import Any

import msgspec

from models.chat.requests.request import ChatRequest

_MARKS = re.compile(rb'"name"\s*:\s*null|"arguments"\s*:\s*[{n]')
"""Matches messages that need it. Inside a text the quotes would be escaped."""
_NONE = msgspec.Raw(b"[]")


def complete(request: ChatRequest) -> None:
    """Remove names that are null, and write arguments as text."""
    if _MARKS.search(memoryview(request.fields.get("messages", _NONE))) is None:
        return  # the usual case
    messages = request.value("messages")
    if isinstance(messages, list):
        request.replace("messages", msgspec.json.encode([_message(message) for message in messages]))


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    found = {key: value for key, value in message.items() if key != "name" or value is not None}
    if isinstance(calls := found.get("tool_calls"), list):
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _call(call: Any) -> Any:
    match call:
        case {"function": {"arguments": dict() | None as arguments} as function}:
            text = msgspec.json.encode(arguments or {}).decode()
            return {**call, "function": {**function, "arguments": text}}
        case _:
            return call
