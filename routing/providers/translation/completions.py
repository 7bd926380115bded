"""What is read of a chat completion, whole or in pieces."""

import msgspec

from registry.json import NOT_JSON
from routing.providers.passing import BadAnswer


class Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class ToolFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ChatToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: ToolFunction = msgspec.field(default_factory=ToolFunction)


class Spoken(msgspec.Struct):
    """A message, or a piece of one."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def said(self) -> str:
        return self.content or self.refusal or ""


class ChatChoice(msgspec.Struct):
    message: Spoken | None = None
    delta: Spoken | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """vLLM's: the stop string that was met."""


class ChatCompletion(msgspec.Struct):
    """A whole one or a chunk."""

    id: str = ""
    model: str = ""
    choices: list[ChatChoice] = []
    usage: ChatUsage | None = None


def read(data: bytes) -> ChatCompletion:
    """Raises BadAnswer."""
    try:
        return msgspec.json.decode(data, type=ChatCompletion)
    except NOT_JSON:
        raise BadAnswer("answered with a completion that is none") from None
