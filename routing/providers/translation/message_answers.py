"""Translates chat completions to Anthropic's messages, streamed or not."""

import secrets
from typing import Any

import msgspec

from models import sse
from registry.base.json import NOT_JSON
from routing.providers.pass_through import BadAnswer
from routing.providers.translation.call_order import OrderedCalls
from routing.providers.translation.completions import (
    CUT,
    FILTERED,
    ChatChoice,
    ChatCompletion,
    ChatDelta,
    ChatToolCall,
    ChatUsage,
    read,
)
from routing.providers.translation.reading import Json

REASONS = {
    "stop": "end_turn",
    **dict.fromkeys(CUT, "max_tokens"),
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    **dict.fromkeys(FILTERED, "refusal"),
}


class MessageAnswers:
    """`routing.providers.plan.Translator`."""

    def __init__(self) -> None:
        self._first: ChatCompletion | None = None
        self._usage = ChatUsage()
        self._open: str | None = None
        """The kind of the current content block. `call N` for a tool call."""
        self._blocks = 0
        self._calls = OrderedCalls()
        self._choice = ChatChoice()

    def whole(self, data: bytes) -> bytes:
        completion = read(data)
        if not completion.choices or completion.choices[0].message is None:
            raise BadAnswer("answered with a completion that says nothing")
        choice = completion.choices[0]
        message = choice.message or ChatDelta()
        content: list[Json] = []
        if message.reasoning_text:
            content.append({"type": "thinking", "thinking": message.reasoning_text, "signature": ""})
        if message.visible_text:
            content.append({"type": "text", "text": message.visible_text})
        for call in message.tool_calls or ():
            arguments = _arguments(call, is_cut=choice.finish_reason in (*CUT, *FILTERED))
            if arguments is not None:
                content.append({**_tool_use(call), "input": arguments})
        return msgspec.json.encode(
            {
                **_head(completion),
                "content": content,
                **_stopped(choice, called=bool(message.tool_calls)),
                "usage": usage(completion.usage or ChatUsage()),
            }
        )

    def event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data or data == sse.DONE:
            return b""
        chunk, parts = read(data), []
        self._usage = chunk.usage or self._usage
        if self._first is None and chunk.choices:  # Azure's first chunk has none, and no id
            self._first = chunk
            message = {**_head(chunk), "content": [], "stop_reason": None, "stop_sequence": None}
            usage_so_far = usage(self._usage)
            parts.append(_event("message_start", message={**message, "usage": {**usage_so_far, "output_tokens": 0}}))
        for choice in chunk.choices[:1]:
            parts += self._piece(choice.delta or ChatDelta())
            if choice.finish_reason:
                self._choice = choice
        return b"".join(parts)

    def _piece(self, message: ChatDelta) -> list[bytes]:
        parts = []
        if message.reasoning_text or message.visible_text:
            self._calls.words()
        if message.reasoning_text:
            parts += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            parts.append(self._delta(type="thinking_delta", thinking=message.reasoning_text))
        if message.visible_text:
            parts += self._block("text", {"type": "text", "text": ""})
            parts.append(self._delta(type="text_delta", text=message.visible_text))
        for piece in message.tool_calls or ():
            for call in self._calls.take(piece):
                parts += self._call(call)
        return parts

    def _call(self, call: ChatToolCall) -> list[bytes]:
        parts = self._block(f"call {call.index}", {**_tool_use(call), "input": {}})
        if arguments_text := call.function.arguments_text:
            parts.append(self._delta(type="input_json_delta", partial_json=arguments_text))
        return parts

    def _block(self, kind: str, block: Json) -> list[bytes]:
        """Return the events that start this block, if it is not the current one."""
        if kind == self._open:
            return []
        closed = self._close()
        self._open = kind
        return [*closed, _event("content_block_start", index=self._blocks, content_block=block)]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        self._blocks += 1
        return [_event("content_block_stop", index=self._blocks - 1)]

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def end(self) -> bytes:
        rest = [part for call in self._calls.rest() for part in self._call(call)]
        last = _event("message_delta", delta=_stopped(self._choice, called=self._calls.begun), usage=usage(self._usage))
        return b"".join([*rest, *self._close(), last, _event("message_stop")])


def _head(completion: ChatCompletion) -> Json:
    return {"id": completion.id, "type": "message", "role": "assistant", "model": completion.model}


def _stopped(choice: ChatChoice, *, called: bool) -> Json:
    """Return the stop reason. `tool_use` even if a forced tool call ended with OpenAI's `stop`."""
    if called and choice.finish_reason == "stop":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if choice.finish_reason == "stop" and isinstance(choice.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
    return {"stop_reason": REASONS.get(choice.finish_reason or "", "end_turn"), "stop_sequence": None}


def _tool_use(call: ChatToolCall) -> Json:
    return {"type": "tool_use", "id": call.id or f"toolu_{secrets.token_hex(12)}", "name": call.function.name or ""}


def _arguments(call: ChatToolCall, *, is_cut: bool) -> Json | None:
    """Return a call's arguments. None if the answer was cut off within them."""
    try:
        return msgspec.json.decode(call.function.arguments_text or "{}", type=dict[str, Any])
    except NOT_JSON:
        if is_cut:
            return None
        raise BadAnswer("answered with a tool call whose arguments are not JSON") from None


def _event(kind: str, **more: Any) -> bytes:
    return sse.event({"type": kind, **more}, kind)


def usage(reported: ChatUsage) -> Json:
    return {
        "input_tokens": max(0, (reported.prompt_tokens or 0) - reported.cached - reported.written),
        "cache_creation_input_tokens": reported.written,
        "cache_read_input_tokens": reported.cached,
        "output_tokens": reported.output_tokens,
    }
