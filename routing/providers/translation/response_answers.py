"""Translates chat completions to OpenAI's Responses, streamed or not."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from models import sse
from models.chat.answers import responses
from routing.providers.pass_through import BadAnswer
from routing.providers.translation.call_order import OrderedCalls
from routing.providers.translation.completions import (
    CUT,
    FILTERED,
    ChatCompletion,
    ChatDelta,
    ChatToolCall,
    ChatUsage,
    read,
)
from routing.providers.translation.reading import Json

INCOMPLETE = {**dict.fromkeys(CUT, "max_output_tokens"), **dict.fromkeys(FILTERED, "content_filter")}
TEXTS = {"reasoning_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content, and the field with their text."""
DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(responses.ECHOED),
    **responses.DEFAULTS,
    "instructions": None,
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}
"""Fields of the request that an answer repeats, with their defaults."""


class _Item:
    """The current output item: text of one kind, or a tool call."""

    def __init__(self, kind: str, index: int, call: ChatToolCall | None) -> None:
        self.kind, self.index, self.text = kind, index, ""
        self.id = f"item_{secrets.token_hex(12)}"
        self.call = call

    def as_json(self, status: str) -> Json:
        if self.call is not None:
            named = {"call_id": self.call.id or self.id, "name": self.call.function.name or ""}
            return {"id": self.id, "type": "function_call", "status": status, **named, "arguments": self.text}
        content = [] if status == "in_progress" else [self.part]
        if self.kind == "reasoning_text":
            return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    @property
    def part(self) -> Json:
        more: Json = {"annotations": [], "logprobs": []} if self.kind == "output_text" else {}
        return {"type": self.kind, TEXTS[self.kind]: self.text, **more}

    @property
    def name(self) -> str:
        return "response.function_call_arguments" if self.call is not None else f"response.{self.kind}"

    @property
    def where(self) -> Json:
        position: Json = {"item_id": self.id, "output_index": self.index}
        return position if self.call is not None else {**position, "content_index": 0}


def echoed(request: Mapping[str, Any]) -> Json:
    """Return the request's fields that an answer repeats."""
    values = {name: default if request.get(name) is None else request[name] for name, default in DEFAULTS.items()}
    return {**values, "tools": [{"strict": None, "parameters": None, **tool} for tool in values["tools"]]}


class ResponseAnswers:
    """`routing.providers.plan.Translator`. request: repeated in answers."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request, self._created = request, int(time.time())
        self._first: ChatCompletion | None = None
        self._usage, self._finish = ChatUsage(), ""
        self._item: _Item | None = None
        self._output: list[Json] = []
        self._calls = OrderedCalls()
        self._events = 0

    def whole(self, data: bytes) -> bytes:
        completion = self._first = read(data)
        if not completion.choices or completion.choices[0].message is None:
            raise BadAnswer("answered with a completion that says nothing")
        self._usage, self._finish = completion.usage or ChatUsage(), completion.choices[0].finish_reason or ""
        self._piece(completion.choices[0].message)
        self._end(self._status)
        return msgspec.json.encode(self._response(self._status))

    def event(self, event: bytes) -> bytes:
        data = sse.data_of(event)
        if not data or data == sse.DONE:
            return b""
        chunk, events = read(data), []
        if self._first is None and chunk.choices:  # Azure's first chunk has none, and no id
            self._first = chunk
            events += [self._event(f"response.{name}", response=self._response("in_progress"))
                       for name in ("created", "in_progress")]  # fmt: skip
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices[:1]:
            events += self._piece(choice.delta or ChatDelta())
            self._finish = choice.finish_reason or self._finish
        return b"".join(events)

    def end(self) -> bytes:
        status = self._status
        return b"".join([*self._end(status), self._event(f"response.{status}", response=self._response(status))])

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish in INCOMPLETE else "completed"

    # --- output items -----------------------------------------------------------------------------------------------
    def _piece(self, delta: ChatDelta) -> list[bytes]:
        events = []
        for kind, text in (
            ("reasoning_text", delta.reasoning_text), ("output_text", delta.words), ("refusal", delta.refusal),
        ):  # fmt: skip
            if text:
                self._calls.words()
                events += self._say(kind, text)
        for piece in delta.tool_calls or ():
            for call in self._calls.take(piece):
                events += self._say(f"call {call.index}", call.function.arguments_text, call)
        return events

    def _end(self, status: str) -> list[bytes]:
        """Close the items: first held calls, then the last item."""
        rest = []
        for call in self._calls.rest():
            rest += self._say(f"call {call.index}", call.function.arguments_text, call)
        return [*rest, *self._close(status)]

    def _say(self, kind: str, text: str, call: ChatToolCall | None = None) -> list[bytes]:
        events, item = [], self._item
        if item is None or item.kind != kind:
            events = self._close("completed")
            item = self._item = _Item(kind, len(self._output), call)
            added = item.as_json("in_progress")
            events.append(self._event("response.output_item.added", output_index=item.index, item=added))
            if call is None:
                events.append(self._event("response.content_part.added", **item.where, part=item.part))
        if text:
            item.text += text
            more: Json = {"logprobs": []} if kind == "output_text" else {}
            events.append(self._event(f"{item.name}.delta", **item.where, delta=text, **more))
        return events

    def _close(self, status: str) -> list[bytes]:
        item = self._item
        if item is None:
            return []
        silent = item.call is not None and not item.text
        opening_events = self._say(item.kind, "{}", item.call) if silent else []
        self._item = None
        done = item.as_json(status)
        self._output.append(done)
        if item.call is not None:
            ends = [self._event(f"{item.name}.done", **item.where, name=done["name"], arguments=item.text)]
        else:
            more: Json = {"logprobs": []} if item.kind == "output_text" else {}
            text = {TEXTS[item.kind]: item.text}
            ends = [
                self._event(f"{item.name}.done", **item.where, **text, **more),
                self._event("response.content_part.done", **item.where, part=item.part),
            ]
        return [*opening_events, *ends, self._event("response.output_item.done", output_index=item.index, item=done)]

    # --- the answer -------------------------------------------------------------------------------------------------
    def _event(self, kind: str, **more: Any) -> bytes:
        self._events += 1
        return sse.event({"type": kind, "sequence_number": self._events - 1, **more}, kind)

    def _response(self, status: str) -> Json:
        first = self._first or ChatCompletion()
        reason = INCOMPLETE.get(self._finish) if status == "incomplete" else None
        return {
            "id": f"resp_{first.id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "access_programs": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": first.model,
            "output": self._output,
            **echoed(self._request),
            **({} if status == "in_progress" else {"usage": usage(self._usage)}),
        }


def usage(reported: ChatUsage) -> Json:
    prompt, output = reported.prompt_tokens or 0, reported.output_tokens
    reasoning_tokens_ = (
        (reported.completion_tokens_details.reasoning_tokens or 0) if reported.completion_tokens_details else 0
    )
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": reported.cached, "cache_write_tokens": reported.written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens_},
        "total_tokens": prompt + output,
    }
