"""Anthropic's documents of plain text, written as text where a model reads them.

vLLM knows no documents. A PDF, and a document whose citations are switched on, stay and are refused.
"""

from typing import Any

import msgspec

from models.chat.requests.request import ChatRequest

_MARK, _NONE = b'"document"', msgspec.Raw(b"[]")


def write_out(request: ChatRequest) -> None:
    """Put the text of each document in the messages where the document stands."""
    if _MARK not in bytes(request.fields.get("messages", _NONE)):
        return  # nearly all
    messages = request.value("messages")
    if not isinstance(messages, list):
        return
    written = [_message(message) for message in messages]
    if written != messages:
        request.replace("messages", msgspec.json.encode(written))


def _message(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_block(block) for block in message["content"]]}


def _block(block: Any) -> Any:
    match block:
        case {"type": "document", "citations": {"enabled": True}}:
            return block
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            heading = [part for name in ("title", "context") if isinstance(part := block.get(name), str) and part]
            return {"type": "text", "text": "\n\n".join([*heading, text])}
        case _:
            return block
