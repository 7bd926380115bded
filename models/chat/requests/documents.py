"""Turn Anthropic's plain-text documents into text blocks.

vLLM does not support documents. PDFs and documents with citations switched on are left unchanged and then refused.
"""

from typing import Any

import msgspec

from models.chat.requests.request import ChatRequest

_MARK, _NONE = b'"document"', msgspec.Raw(b"[]")


def write_out(request: ChatRequest) -> None:
    """Replace each document in the messages by its text."""
    if _MARK not in bytes(request.fields.get("messages", _NONE)):
        return  # the usual case
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
