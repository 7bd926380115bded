"""What is read of a chat completion, whole or in pieces."""

import msgspec

from routing.providers.passing import BadAnswer


class Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: Function = msgspec.field(default_factory=Function)


class Spoken(msgspec.Struct):
    """A message, or a piece of one."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def said(self) -> str:
        return self.content or self.refusal or ""


class Choice(msgspec.Struct):
    message: Spoken | None = None
    delta: Spoken | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """vLLM's: the stop string that was met."""


class Completion(msgspec.Struct):
    """A whole one or a chunk."""

    id: str = ""
    model: str = ""
    choices: list[Choice] = []
    usage: Usage | None = None


def read(data: bytes) -> Completion:
    """Raises BadAnswer."""
    try:
        return msgspec.json.decode(data, type=Completion)
    except msgspec.DecodeError:
        raise BadAnswer("answered with a completion that is none") from None
