"""Passes on an answer in the client's own dialect, with the client's model name and call numbers.

Also reads usage, whether the answer has begun and ended, errors in mid-answer, and which model answered.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from models import sse
from models.messages import Usage
from registry.base.json import NOT_JSON
from registry.recipes.provider import Surface
from routing.providers import faults


class CallNumbers:
    """Numbers the tool calls of a choice. Gemini sends no number, or 0; clients would see one call.

    | a piece has                                       | it belongs to                                      |
    |---------------------------------------------------|----------------------------------------------------|
    | a number                                          | the call with this number                          |
    | a number, a name, and an id other than its call's | a new call, like all later pieces with that number |
    | no number, and a known id                         | the call with this id                              |
    | no number, and a name                             | a new call                                         |
    | no number and no name                             | the previous call                                  |
    """

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        """Call ids by the number assigned here."""
        self._moved: dict[int, int] = {}
        """New numbers of calls whose own number was taken, by that number."""
        self._last = 0

    def number(self, sent: int | None, call_id: str, *, named: bool) -> int:
        """Return the number of the call that a piece belongs to."""
        if sent is None:
            by_id = next((number for number, id_ in self._ids.items() if call_id and id_ == call_id), None)
            number_here = by_id if by_id is not None else self._new if named else self._last
        else:
            number_here = self._moved.get(sent, sent)
            if named and call_id and self._ids.get(number_here, call_id) != call_id:
                number_here = self._moved[sent] = self._new
        self._ids.setdefault(number_here, call_id)
        self._last = number_here
        return number_here

    @property
    def _new(self) -> int:
        return max(self._ids, default=-1) + 1


NESTED = ("response", "message")
"""Fields of events in Responses and Messages that contain the model's name and usage."""
ENDS = frozenset({"response.completed", "response.incomplete", "message_stop"})
FAILS = frozenset({"error", "response.failed"})
QUIET = frozenset(
    {"response.created", "response.queued", "response.in_progress", "message_start", "content_block_start", "ping"}
)
"""Events before the first words. An error may still replace these."""


_VERSION = re.compile(r"([-@](\d{4}-\d\d-\d\d|\d\d-\d\d|\d{3,8}|latest|preview|beta|exp))*+(:.*)?")
"""Version suffix of a model's name. Not `-mini`, `-32k` or the 1 of `opus-4-1`. Possessive, because a date is also a
number and a shorter date: twenty of them would have a million readings."""


_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a surrogate pair, such as of an emoji: JavaScript servers may split it."""


def _whole_characters(data: bytes) -> bytes:
    """Return the data as UTF-8. A server that sends each token's bytes may split a character between two events."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


class BadAnswer(Exception):
    """An invalid answer. The message completes 'Provider x ...'."""


class ErrorEvent(Exception):
    """The provider reported an error in mid-answer."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


# --- usage -----------------------------------------------------------------------------------------------------------
class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Usage in OpenAI's two formats and in Anthropic's."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    cached_tokens: int | None = None
    """Kimi."""
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


def merged(before: Usage, raw: msgspec.Raw) -> Usage:
    """Merge reported usage. Later values win, because Anthropic reports in two parts."""
    try:
        reported = msgspec.json.decode(raw, type=_Usage | None, strict=False)
    except NOT_JSON:
        return before
    if reported is None:
        return before
    read, written = reported.cache_read_input_tokens, reported.cache_creation_input_tokens
    prompt = reported.prompt_tokens
    if reported.input_tokens is not None:
        if prompt is None and reported.input_tokens_details is None:  # the second part may omit counts of the first
            read = before.cached_tokens if read is None else read
            written = before.written_tokens if written is None else written
        prompt = reported.input_tokens + (written or 0) + (read or 0)
    cached = read or reported.cached_tokens or reported.prompt_cache_hit_tokens or 0
    written = written or 0
    for details in (reported.prompt_tokens_details, reported.input_tokens_details):
        cached = cached or (details.cached_tokens or 0 if details else 0)
        written = written or (details.cache_write_tokens or 0 if details else 0)
    completion = reported.completion_tokens if reported.output_tokens is None else reported.output_tokens
    if reported.prompt_tokens is not None and reported.total_tokens is not None and reported.output_tokens is None:
        completion = with_reasoning(reported.prompt_tokens, completion or 0, reported.total_tokens)
    prompt = max(0, before.prompt_tokens if prompt is None else prompt)
    cached = min(prompt, max(0, cached or before.cached_tokens))  # a part of the prompt, or its price would be negative
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=max(0, before.completion_tokens if completion is None else completion),
        cached_tokens=cached,
        written_tokens=min(prompt - cached, max(0, written or before.written_tokens)),
    )


def with_reasoning(prompt: int, completion: int, total: int) -> int:
    """Return completion tokens including reasoning, which xAI and Gemini count only in the total."""
    return max(completion, total - prompt)


# --- one object ------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class AnswerProgress:
    """What has been read of an answer so far."""

    public_name: str
    """The model name that the client sees."""
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    """The model's name as the provider reports it."""

    def object(self, data: bytes) -> tuple[bytes, dict[str, msgspec.Raw]]:
        """Return an object with the client's model name, and its fields. Raises BadAnswer for anything else."""
        data = _whole_characters(data)
        try:
            parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except NOT_JSON:
            whole = _HALF.sub(rb"\\ufffd", data)
            if whole == data:
                raise BadAnswer("answered with something other than a JSON object") from None
            return self.object(whole)
        return (msgspec.json.encode(parts) if self._in(parts) else data), parts

    def _in(self, parts: dict[str, msgspec.Raw]) -> bool:
        if (usage := parts.get("usage")) is not None:
            self.usage = merged(self.usage, usage)
        changed = parts.pop("model_used", None) is not None  # from another Roundhouse, whose names mean nothing here
        if (name := parts.get("model")) is not None:
            self.model = self.model or _text(name)
            parts["model"] = msgspec.Raw(msgspec.json.encode(self.public_name))
            changed = True
        for key in NESTED:
            inner = parts.get(key)
            if inner is not None and bytes(inner)[:1] == b"{":
                nested = msgspec.json.decode(inner, type=dict[str, msgspec.Raw])
                if self._in(nested):
                    parts[key] = msgspec.Raw(msgspec.json.encode(nested))
                    changed = True
        return changed


# --- streams ---------------------------------------------------------------------------------------------------------
class _Call(msgspec.Struct):
    """A piece of a tool call. Odd values are passed on."""

    index: Any = None
    id: Any = None
    function: Any = None


class _Delta(msgspec.Struct):
    content: str | list[msgspec.Raw] | None = None
    """A list of parts for Mistral's reasoning models."""
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    audio: Any = None
    function_call: Any = None
    images: Any = None
    reasoning_details: Any = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    usage: msgspec.Raw = msgspec.Raw()
    """Usage, in Kimi's streams."""

    @property
    def says(self) -> bool:
        delta = self.delta or _Delta()
        content = delta.content or delta.reasoning or delta.reasoning_content or delta.refusal or delta.tool_calls
        more = delta.audio or delta.function_call or delta.images or delta.reasoning_details
        return bool(content or more or self.text or self.finish_reason)


class PassThrough:
    """One stream. `take` returns an event for the client, or None.

    Args:
        wants_usage: whether the client requested OpenAI's last chunk, which has usage and no choices.
    """

    def __init__(self, surface: Surface, public_name: str, wants_usage: bool) -> None:
        self._surface, self._wants_usage = surface, wants_usage
        self.progress = AnswerProgress(public_name)
        self.begun = False
        """Whether there have been words."""
        self.ended = False
        self._finished = False
        self._numbers: defaultdict[int | None, CallNumbers] = defaultdict(CallNumbers)
        """Call numbers by choice."""
        self.pieces = 0
        """Events with words: an estimate of the length of an answer that broke off."""

    def take(self, event: bytes) -> bytes | None:
        """Convert one event. Raises BadAnswer, ErrorEvent."""
        data = sse.data_of(event)
        if error := sse.data_of(event, b"error:"):  # llama.cpp sends this, followed by a normal end
            raise ErrorEvent(error)
        if not data:  # not an event, but OpenAI's client would parse one with a name as JSON
            comments = [line for line in event.splitlines() if line.startswith(b":")]
            return b"\n".join([*comments, b"", b""]) if comments else None
        if data == sse.DONE:
            self.ended = True
            return event
        new, parts = self.progress.object(data)
        kind = _text(parts.get("type"))
        if bytes(parts.get("error", b"null")) != b"null":
            raise ErrorEvent(data)
        if kind in FAILS:
            raise ErrorEvent(_failed(parts, data))
        if self._surface in (Surface.CHAT, Surface.COMPLETIONS):
            choices = _choices(parts.get("choices"))
            for choice in choices:
                if choice.usage:
                    self.progress.usage = merged(self.progress.usage, choice.usage)
            if bytes(parts.get("choices", b"null")) == b"null":  # clients iterate over them
                if "usage" not in parts and faults.is_error(data):
                    raise ErrorEvent(data)
                parts["choices"] = msgspec.Raw(b"[]")
                new = msgspec.json.encode(parts)
            self._finished = self._finished or any(choice.finish_reason for choice in choices)
            says = any(choice.says for choice in choices)
            if not choices and bytes(parts.get("usage", b"null")) != b"null" and not self._wants_usage:
                return None
            new = self._numbered(choices, parts, new)
        else:
            says = kind not in QUIET
            self.ended = self.ended or kind in ENDS
        self.begun = self.begun or says
        self.pieces += says
        return event if new is data else sse.with_data(event, new)

    def _numbered(self, choices: list[_Choice], parts: dict[str, msgspec.Raw], data: bytes) -> bytes:
        """Return the chunk with corrected numbers of tool calls."""
        is_changed = False
        for choice in choices:
            for call in (choice.delta and choice.delta.tool_calls) or ():
                sent = call.index if isinstance(call.index, int) else None
                call_id = call.id if isinstance(call.id, str) else ""
                named = isinstance(call.function, dict) and bool(call.function.get("name"))
                number = self._numbers[choice.index].number(sent, call_id, named=named)
                is_changed, call.index = is_changed or number != call.index, number
        if not is_changed:
            return data
        raw_choices = msgspec.json.decode(parts["choices"])
        for choice, raw in zip(choices, raw_choices, strict=True):
            for call, piece in zip((choice.delta and choice.delta.tool_calls) or (), _calls(raw), strict=True):
                piece["index"] = call.index
        return msgspec.json.encode({**parts, "choices": raw_choices})

    def at_end(self) -> None:
        """Handle the end of the connection. Raises BadAnswer if the answer is incomplete."""
        if not (self.ended or self._finished):
            raise BadAnswer("broke off in mid-answer")
        self.ended = True


def _text(raw: msgspec.Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except NOT_JSON:
        return None


def _choices(raw: msgspec.Raw | None) -> list[_Choice]:
    if raw is None:
        return []
    try:
        return msgspec.json.decode(raw, type=list[_Choice] | None) or []
    except NOT_JSON:
        raise BadAnswer("answered with a chunk whose choices are invalid") from None


def _calls(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return (choice.get("delta") or {}).get("tool_calls") or []


def _failed(parts: dict[str, msgspec.Raw], data: bytes) -> bytes:
    """Return the error of a Responses event, which is in the response or flat in the event."""
    inner = parts.get("response")
    if inner is not None and bytes(inner)[:1] == b"{":
        return bytes(inner)
    return data if "error" in parts else b'{"error":' + data + b"}"


def is_other_model(sent: str, answered_by: str | None) -> bool:
    """Whether another model answered. Dated and full names count as the same model."""
    if answered_by is None or answered_by == sent:
        return False
    short, name = sent.rpartition("/")[2].removesuffix("-latest"), answered_by.rpartition("/")[2]
    return not (name.startswith(short) and _VERSION.fullmatch(name[len(short) :]))
