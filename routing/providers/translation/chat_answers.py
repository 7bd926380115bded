"""Translates Anthropic's messages to chat completions, streamed or not."""

import time
from typing import Any, TypeVar

import msgspec

from models import sse
from registry.base.json import NOT_JSON
from routing.providers.pass_through import BadAnswer
from routing.providers.translation.reading import Json

REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


READ = frozenset(
    {
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "text", "thinking", "tool_use", "text_delta", "thinking_delta", "input_json_delta",
    }
)  # fmt: skip
"""Kinds of events, blocks and deltas that are read. Others may have any content, and are ignored."""


Read = TypeVar("Read")
NOTHING = msgspec.Raw(b"{}")


class TaggedObject(msgspec.Struct):
    type: str = ""


class AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class AnthropicBlock(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Any = None


class AnthropicMessage(msgspec.Struct):
    id: str = ""
    model: str = ""
    content: list[msgspec.Raw] = []
    stop_reason: str | None = None
    usage: AnthropicUsage = msgspec.field(default_factory=AnthropicUsage)


class Delta(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    partial_json: str = ""


class StreamEnd(msgspec.Struct):
    stop_reason: str | None = None


class Event(msgspec.Struct):
    type: str
    index: int = 0
    message: AnthropicMessage | None = None
    content_block: msgspec.Raw = NOTHING
    delta: msgspec.Raw = NOTHING
    usage: AnthropicUsage | None = None


class ChatAnswers:
    """`routing.providers.plan.Translator`.

    Args:
        wants_usage: whether a stream ends with OpenAI's usage chunk.
    """

    def __init__(self, wants_usage: bool) -> None:
        self._wants_usage = wants_usage
        self._message, self._created = AnthropicMessage(), int(time.time())
        self._calls: dict[int, int] = {}
        """Tool call numbers by content block."""
        self._silent: dict[int, Any] = {}
        """Initial arguments of content blocks whose arguments have not been streamed."""
        self._reason: str | None = None

    def whole(self, data: bytes) -> bytes:
        message = _read(data, AnthropicMessage)
        content = [block for raw in message.content if (block := _read_known(raw, AnthropicBlock))]
        text = "".join(block.text for block in content if block.type == "text")
        reasoning = "".join(block.thinking for block in content if block.type == "thinking")
        calls = [
            {
                "id": block.id,
                "type": "function",
                "function": {"name": block.name, "arguments": _arguments(block.input)},
            }
            for block in content
            if block.type == "tool_use"
        ]
        answer: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if reasoning:
            answer |= _reasoning(reasoning)
        if calls:
            answer["tool_calls"] = calls
        choice = {"index": 0, "message": answer, "logprobs": None, "finish_reason": reason(message.stop_reason)}
        completion = {"id": message.id, "object": "chat.completion", "created": self._created, "model": message.model}
        return msgspec.json.encode({**completion, "choices": [choice], "usage": usage(message.usage)})

    def event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data:
            return b""
        decoded = _read_known(data, Event)
        match decoded:
            case Event(type="message_start", message=AnthropicMessage() as message):
                self._message = message
                return self._chunk({"role": "assistant", "content": ""})
            case Event(type="content_block_start", index=index, content_block=raw):
                block = _read_known(raw, AnthropicBlock)
                return self._block_started(index, block) if block else b""
            case Event(type="content_block_delta", index=index, delta=raw):
                delta = _read_known(raw, Delta)
                return self._content(index, delta) if delta else b""
            case Event(type="content_block_stop", index=index) if index in self._silent:
                return self._arguments_chunk(index, _arguments(self._silent.pop(index)))
            case Event(type="message_delta", delta=raw, usage=counts):
                self._counted(counts or AnthropicUsage())
                self._reason = _read(raw, StreamEnd).stop_reason or self._reason
                return self._chunk({}, reason(self._reason)) if self._reason else b""
        return b""

    def _block_started(self, index: int, block: AnthropicBlock) -> bytes:
        if block.type != "tool_use":  # it may start with text
            words = Delta(f"{block.type}_delta", block.text, block.thinking)
            return self._content(index, words) if block.text or block.thinking else b""
        number = self._calls[index] = len(self._calls)
        self._silent[index] = block.input
        function = {"name": block.name, "arguments": ""}
        return self._chunk(
            {"tool_calls": [{"index": number, "id": block.id, "type": "function", "function": function}]}
        )

    def _content(self, index: int, delta: Delta) -> bytes:
        match delta.type:
            case "text_delta":
                return self._chunk({"content": delta.text})
            case "thinking_delta":
                return self._chunk(_reasoning(delta.thinking))
            case "input_json_delta" if index in self._calls:
                if delta.partial_json:
                    self._silent.pop(index, None)
                return self._arguments_chunk(index, delta.partial_json)
        return b""

    def _arguments_chunk(self, index: int, arguments: str) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._calls[index], "function": {"arguments": arguments}}]})

    def end(self) -> bytes:
        last = sse.event({**self._head(), "choices": [], "usage": usage(self._message.usage)})
        return (last if self._wants_usage else b"") + sse.DONE_EVENT

    def _counted(self, usage_reported: AnthropicUsage) -> None:
        before = self._message.usage
        for name in before.__struct_fields__:
            if (value := getattr(usage_reported, name)) is not None:
                setattr(before, name, value)

    def _chunk(self, delta: Json, finish: str | None = None) -> bytes:
        return sse.event({**self._head(), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _head(self) -> Json:
        message = self._message
        return {
            "id": message.id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": message.model,
        }


def _read(data: bytes | msgspec.Raw, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except NOT_JSON:
        raise BadAnswer("answered with an invalid message") from None


def _read_known(data: bytes | msgspec.Raw, kind: type[Read]) -> Read | None:
    return _read(data, kind) if _read(data, TaggedObject).type in READ else None


def reason(stop: str | None) -> str:
    return REASONS.get(stop or "", "stop")


def _reasoning(text: str) -> Json:
    """Reasoning in vLLM's and Ollama's field, and in that of LiteLLM and DeepSeek, which Cline and others read."""
    return {"reasoning": text, "reasoning_content": text}


def _arguments(value: Any) -> str:
    return msgspec.json.encode(value or {}).decode()


def usage(reported: AnthropicUsage) -> Json:
    cached, written = reported.cache_read_input_tokens or 0, reported.cache_creation_input_tokens or 0
    prompt = (reported.input_tokens or 0) + cached + written
    output = reported.output_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
    }
