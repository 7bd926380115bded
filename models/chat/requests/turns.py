"""Complete the messages of Chat Completions that vLLM's classes refuse, though their meaning is clear.

A call's arguments are JSON text in OpenAI's API. Clients that also speak to Ollama send them as an object. An image is
an object with a `url`; clients of Mistral's API send the URL alone, and those of Ollama's the image's base64 alone.
Clients of Mistral's API leave out the `type` of a call. A tool's result without text is empty; some clients send null.

`check` describes messages that are none, since vLLM's classes report every kind of message that they might have been,
and parts that no model reads.
"""

import re
from typing import Any

import msgspec

from models.chat.requests.request import ChatRequest, Turn, begins, list_items
from registry.errors import BadRequest

_FILE = re.compile(rb'"type"\s*:\s*"file"')
_MARKS = re.compile(
    rb'"name"\s*:\s*null|"arguments"\s*:\s*[{n]|"image_url"\s*:\s*"|"url"\s*:\s*"(?:iVBOR|/9j/|R0lG|UklGR)'
)
"""Matches messages that need it. Inside a text the quotes would be escaped."""
_CALLS, _FUNCTION, _TYPE = (
    re.compile(mark) for mark in (rb'"tool_calls"', rb'"function"\s*:', rb'"type"\s*:\s*"function"')
)
_NONE, _NULL = msgspec.Raw(b"[]"), msgspec.Raw(b"null")
_KINDS = {"iVBOR": "png", "/9j/": "jpeg", "R0lG": "gif", "UklGR": "webp"}
"""Kinds of images, by the beginning of their base64."""
_RESULTS = ("function", "tool")
_NEED_CONTENT = ("developer", "system", "user")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EXAMPLE = '{"role": "user", "content": "Hello"}'


def check(request: ChatRequest) -> None:
    """Raise BadRequest for messages of a chat that are no list, or of which one has no role or text, or a file.

    vLLM takes a message without `content` as an empty one, though the text may be in a field of another name.
    """
    if "messages" not in request.fields:
        return  # vLLM refuses it
    if not begins(request.fields["messages"], b"["):
        raise _fault("messages", f"'messages' is a list of messages: [{_EXAMPLE}].")
    for index, (turn, item) in enumerate(zip(request.turns("messages"), request.items("messages"), strict=True)):
        place = f"messages[{index}]"
        if turn is None:
            raise _fault(place, f"'{place}' is not a message such as {_EXAMPLE}.")
        if turn.role is None:
            raise _fault(f"{place}.role", f"'{place}' has no 'role': a message looks like {_EXAMPLE}.")
        if turn.content == _NULL and turn.role in _NEED_CONTENT and "content" not in _OBJECT.decode(item):
            raise _fault(f"{place}.content", f"'{place}' has no 'content': a message looks like {_EXAMPLE}.")
        if begins(turn.content, b"{"):  # whose keys vLLM would take for parts
            raise _fault(f"{place}.content", f"'{place}.content' is an object: send a string, or a list of parts.")
    if _FILE.search(memoryview(request.fields["messages"])) is not None:
        _refuse_files(request)


def _refuse_files(request: ChatRequest) -> None:
    for index, turn in enumerate(request.turns("messages")):
        for number, part in enumerate(list_items(turn.content) if turn is not None else ()):
            if begins(part, b"{") and msgspec.json.decode(part).get("type") == "file":
                place = f"messages[{index}].content[{number}]"
                advice = "Send the file's text, as a part of type 'text'."
                raise _fault(place, f"{place}: files are not read here. {advice}")


def _fault(param: str, text: str) -> BadRequest:
    return BadRequest(text, param=param, code="invalid_value")


def complete(request: ChatRequest) -> None:
    """Remove names that are null, add the type of calls, and write arguments as text and images as objects."""
    raw = memoryview(request.fields.get("messages", _NONE))
    if _MARKS.search(raw) is None and not _lacks_type(raw) and not any(map(_is_empty, request.turns("messages"))):
        return  # the usual case
    messages = request.value("messages")
    if isinstance(messages, list):
        request.replace("messages", msgspec.json.encode([_message(message) for message in messages]))


def _is_empty(turn: Turn | None) -> bool:
    """Whether a message is a tool's result without content."""
    return turn is not None and turn.role in _RESULTS and turn.content == _NULL


def _lacks_type(raw: memoryview) -> bool:
    """Whether some call has no type, as there are more functions than types."""
    return _CALLS.search(raw) is not None and len(_FUNCTION.findall(raw)) > len(_TYPE.findall(raw))


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    fields = {key: value for key, value in message.items() if key != "name" or value is not None}
    if fields.get("role") in _RESULTS and fields.get("content") is None:
        fields["content"] = ""
    if isinstance(calls := fields.get("tool_calls"), list):
        fields["tool_calls"] = [_call(call) for call in calls]
    if isinstance(parts := fields.get("content"), list):
        fields["content"] = [_part(part) for part in parts]
    return fields


def _part(part: Any) -> Any:
    match part:
        case {"type": "image_url", "image_url": str() as url}:
            return {**part, "image_url": {"url": _url(url)}}
        case {"type": "image_url", "image_url": {"url": str() as url} as image}:
            return {**part, "image_url": {**image, "url": _url(url)}}
        case _:
            return part


def _url(text: str) -> str:
    kind = next((kind for begin, kind in _KINDS.items() if text.startswith(begin)), None)
    return text if kind is None else f"data:image/{kind};base64,{text}"


def _call(call: Any) -> Any:
    if isinstance(call, dict) and "function" in call and not call.get("type"):
        call = {**call, "type": "function"}
    match call:
        case {"function": {"arguments": dict() | None as arguments} as function}:
            text = msgspec.json.encode(arguments or {}).decode()
            return {**call, "function": {**function, "arguments": text}}
        case _:
            return call
