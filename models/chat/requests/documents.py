"""Turn Anthropic's plain-text documents, search results and references to tools into text blocks.

vLLM supports neither documents nor search results: it refuses them in a message, and silently leaves them out of a
tool's result, as it does with blocks of unknown types and with images without a source. PDFs, blocks with citations
switched on, unknown ones in a tool's result, and such images are refused here.

Claude Code's tool search returns references to tools. vLLM makes a second result of them for the same call, which few
chat templates read: some refuse it, others write an empty result and a bare name.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from models.chat.requests.request import COUNT_TOKENS, MESSAGES, ChatRequest
from registry.errors import BadRequest

_IN_RESULT = ("text", "image", "tool_reference")
"""Types of blocks that vLLM reads in a tool's result."""
_PLAIN = (*_IN_RESULT, "tool_use", "tool_result", "thinking", "redacted_thinking", "base64", "url", "ephemeral")
_MARK = re.compile(rb'"type"\s*:\s*"(?!(?:' + "|".join(_PLAIN).encode() + rb')")')
"""Matches messages with other types. Inside a text the quotes would be escaped."""
_UNUSUAL_IMAGE = re.compile(rb'"type"\s*:\s*"image"(?!\s*,\s*"source"\s*:\s*\{\s*")')
"""Matches an image unless its source follows at once."""
REFERENCE = "tool_reference"
_REFERENCE = re.compile(rb'"type"\s*:\s*"tool_reference"')
_NONE = msgspec.Raw(b"[]")


def write_out(request: ChatRequest) -> None:
    """Replace each document and search result in the messages by its text.

    Raises BadRequest for one whose text is not in the request, or that the answer should cite, and for other blocks
    that vLLM would leave out.
    """
    raw = memoryview(request.fields.get("messages", _NONE))
    if _MARK.search(raw) is None and _UNUSUAL_IMAGE.search(raw) is None:
        return  # the usual case
    messages = request.value("messages")
    if not isinstance(messages, list):
        return
    written = [_with_content(message, f"messages[{index}]", _block) for index, message in enumerate(messages)]
    if written != messages:
        request.replace("messages", msgspec.json.encode(written))


def write_out_references(request: ChatRequest) -> None:
    """Replace references to tools in tools' results by texts, for chat templates that do not read references."""
    if request.path not in (MESSAGES, COUNT_TOKENS):
        return
    if _REFERENCE.search(memoryview(request.fields.get("messages", _NONE))) is None:
        return  # the usual case
    messages = request.value("messages")
    if isinstance(messages, list):
        written = [_with_content(message, "", _write_out_result) for message in messages]
        request.replace("messages", msgspec.json.encode(written))


def _write_out_result(block: Any, at: str) -> Any:
    match block:
        case {"type": "tool_result"}:
            return _with_content(block, at, _write_out_reference)
        case _:
            return block


def _write_out_reference(block: Any, at: str) -> Any:
    match block:
        case {"type": "tool_reference", "tool_name": str(name)}:
            return {"type": "text", "text": f"The tool {name} is available now."}
        case _:
            return block


def _with_content(holder: Any, at: str, write: Callable[[Any, str], Any]) -> Any:
    """Write out the blocks in the content of a message or of a tool's result."""
    if not isinstance(holder, dict) or not isinstance(holder.get("content"), list):
        return holder
    blocks = [write(block, f"{at}.content[{index}]") for index, block in enumerate(holder["content"])]
    return {**holder, "content": blocks}


def _block(block: Any, at: str) -> Any:
    match block:
        case {"type": "tool_result"}:  # results hold no results, and ones nested a thousand times would end this
            return _with_content(block, at, _in_result)
        case _:
            return _written(block, at)


def _in_result(block: Any, at: str) -> Any:
    written = _written(block, at)
    if isinstance(written, dict) and written.get("type") not in _IN_RESULT:
        raise _refusal(f"{at}.type", f"send one of {', '.join(_IN_RESULT)}.")
    return written


def _written(block: Any, at: str) -> Any:
    match block:
        case {"type": "document" | "search_result", "citations": {"enabled": True}}:
            raise _refusal(f"{at}.citations", "answers here cite nothing: leave 'citations' out.")
        case {
            "type": "document",
            "source": {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)},
        }:
            return _text(block, ("title", "context"), text)
        case {"type": "document", "source": {"type": "content", "content": list(parts)}}:
            return _text(block, ("title", "context"), *_texts(parts, f"{at}.source.content"))
        case {"type": "search_result", "content": list(parts)}:
            return _text(block, ("title", "source"), *_texts(parts, f"{at}.content"))
        case {"type": "image", "source": dict(source)} if source:
            return block
        case {"type": "image"}:
            raise _refusal(f"{at}.source", "an image has a 'source' of the type 'base64', with its 'data', or 'url'.")
        case {"type": "document"}:
            raise _refusal(f"{at}.source", "only documents of plain text are read here: send the document's text.")
        case {"type": "search_result"}:
            raise _refusal(f"{at}.content", "a search result has a list of text blocks.")
        case _:
            return block


def _texts(parts: list[Any], at: str) -> list[str]:
    texts = []
    for index, part in enumerate(parts):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise _refusal(f"{at}[{index}]", "only blocks of text are read here: leave others out.")
    return texts


def _text(block: dict[str, Any], names: tuple[str, str], *texts: str) -> dict[str, Any]:
    heading = [part for name in names if isinstance(part := block.get(name), str) and part]
    return {"type": "text", "text": "\n\n".join([*heading, *texts])}


def _refusal(param: str, advice: str) -> BadRequest:
    return BadRequest(f"{param}: {advice}", param=param, code="invalid_value")
