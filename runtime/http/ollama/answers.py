"""Converts vLLM's answers, streamed or not, to Ollama's: one object, or one per line.

Durations are nanoseconds. As in Ollama, `load_duration` lasts until the request got its turn. `eval_duration` of an
answer that is not streamed includes the prompt, since only a stream shows when that was read.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import EngineFailed
from routing.providers.translation.completions import CUT, GAVE_UP, ChatDelta, ChatToolCall, ChatUsage, ToolFunction
from runtime.http.chat.answers import EngineAnswer, EngineChoice, EngineLogprobs, TokenLogprob, read

Clock = Callable[[], int]


def timestamp(seconds: float) -> str:
    """Format a time in seconds since the epoch. Without a fraction, Swift's OllamaKit reads no time."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class OllamaCalledFunction(msgspec.Struct):
    index: int
    """Place among the calls of the answer. Open WebUI joins calls that have none."""
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct):
    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None


class _Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    model: str
    created_at: str
    done: bool
    logprobs: list[TokenLogprob] | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChat(_Answer, kw_only=True, omit_defaults=True):
    """An answer of /api/chat, or a line of it. The last line has counts and durations."""

    message: OllamaAnswerMessage


class OllamaGeneration(_Answer, kw_only=True, omit_defaults=True):
    """An answer of /api/generate, or a line of it. The last line has counts and durations."""

    response: str
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None


Answer = OllamaChat | OllamaGeneration


@dataclass(slots=True)
class Timings:
    """The times when a request arrived, got its turn, and produced its first token."""

    clock: Clock = time.monotonic_ns
    arrived: int = 0
    turn: int | None = None
    first: int | None = None

    def __post_init__(self) -> None:
        self.arrived = self.clock()

    def durations(self) -> dict[str, int]:
        end = self.clock()
        turn = end if self.turn is None else self.turn
        durations = {"total_duration": end - self.arrived, "load_duration": turn - self.arrived}
        if self.first is not None:
            durations["prompt_eval_duration"] = self.first - turn
        return {**durations, "eval_duration": end - (self.first or turn)}


@dataclass(slots=True)
class Writer:
    """Writes the answer to one request. `is_chat`: for /api/chat, else for /api/generate."""

    model: str
    is_chat: bool
    watch: Timings
    usage: ChatUsage = field(default_factory=ChatUsage)
    reason: str = "stop"
    finished: bool = False
    """Whether the engine has sent a finish reason."""
    _calls: dict[int, ChatToolCall] = field(default_factory=dict)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    """Logprobs of tokens that have not shown text yet. They go into the next line."""

    def whole_answer(self, data: bytes) -> Answer:
        """The answer to a request without streaming. Raises EngineFailed for an incomplete completion."""
        answer = read(data)
        if not answer.choices:
            raise EngineFailed("The engine's answer holds no text.")
        choice = answer.choices[0]
        self._note(answer, choice)
        part = choice.message or ChatDelta(choice.text)
        for index, call in enumerate(part.tool_calls or ()):
            self._calls[index] = call
        return self._last(part, choice, self._called())

    def line(self, data: bytes) -> Answer | None:
        """Translate an event of the stream. None if it yields no line."""
        answer = read(data)
        choice = answer.choices[0] if answer.choices else EngineChoice()
        self._note(answer, choice)
        part = choice.delta or ChatDelta(choice.text)
        for call in part.tool_calls or ():
            self._add(call)
        if choice.logprobs is not None:
            self._logprobs += choice.logprobs.content or ()
        if not (part.visible_text or part.reasoning_text):
            if self.watch.first is None and part.tool_calls:
                self.watch.first = self.watch.clock()
            return None
        if self.watch.first is None:
            self.watch.first = self.watch.clock()
        return self._made(part, self._held(), done=False)

    def calls(self) -> Answer | None:
        """A line with the complete tool calls. None if there are none."""
        return self._made(ChatDelta(""), EngineChoice(), self._called(), done=False) if self._calls else None

    def last(self) -> Answer:
        """A stream's last line."""
        return self._last(ChatDelta(""), self._held())

    def only(self, reason: str) -> Answer:
        """The answer to a request that only loads the model."""
        return self._made(ChatDelta(""), EngineChoice(), done=True, done_reason=reason)

    def _held(self) -> EngineChoice:
        """Take the logprobs since the last line."""
        logprobs, self._logprobs = self._logprobs, []
        return EngineChoice(logprobs=EngineLogprobs(logprobs) if logprobs else None)

    def _note(self, answer: EngineAnswer, choice: EngineChoice) -> None:
        if answer.usage is not None:
            self.usage = answer.usage
        if choice.finish_reason is not None:
            self.finished = True
            self.reason = "length" if choice.finish_reason in CUT else "stop"
            if choice.finish_reason in GAVE_UP:
                raise EngineFailed(f"The answer ended before it was complete: {choice.finish_reason}.")

    def _add(self, call: ChatToolCall) -> None:
        """Add a piece of a tool call. The first has its name, and each a piece of its arguments."""
        known = self._calls.setdefault(call.index, ChatToolCall(call.index, call.id, ToolFunction("", ""))).function
        known.name = known.name or call.function.name
        known.arguments = known.arguments_text + call.function.arguments_text

    def _called(self) -> list[OllamaCall] | None:
        """The tool calls. They are sent once all their pieces have arrived, never with text between them."""
        calls = enumerate(self._calls.values())
        return [made for index, call in calls if (made := _called(index, call, self.reason))] or None

    def _last(self, part: ChatDelta, choice: EngineChoice, calls: list[OllamaCall] | None = None) -> Answer:
        counts = {"prompt_eval_count": self.usage.prompt_tokens or 0, "eval_count": self.usage.output_tokens}
        return self._made(part, choice, calls, done=True, done_reason=self.reason, **counts, **self.watch.durations())

    def _made(
        self, part: ChatDelta, choice: EngineChoice, calls: list[OllamaCall] | None = None, *, done: bool, **more: Any
    ) -> Answer:
        fields: dict[str, Any] = {"model": self.model, "created_at": timestamp(time.time()), "done": done, **more}
        if choice.logprobs is not None:
            fields["logprobs"] = choice.logprobs.content
        text, thinking = part.visible_text, part.reasoning_text or None
        if self.is_chat:
            return OllamaChat(message=OllamaAnswerMessage("assistant", text, thinking, calls), **fields)
        return OllamaGeneration(response=text, thinking=thinking, tool_calls=calls, **fields)


def _called(index: int, call: ChatToolCall, reason: str) -> OllamaCall | None:
    """A tool call. None if the answer was cut inside it. Raises EngineFailed unless its arguments are an object."""
    try:
        arguments = msgspec.json.decode(call.function.arguments_text or "{}", type=dict[str, Any])
    except NOT_JSON:
        if reason == "length":
            return None
        raise EngineFailed("The model's call of a function holds no JSON object.") from None
    return OllamaCall(call.id or "", OllamaCalledFunction(index, call.function.name or "", arguments))
