"""Reads chat completions, streamed or not."""

import secrets
from typing import Any

import msgspec

from registry.base.json import NOT_JSON
from routing.providers.pass_through import BadAnswer, with_reasoning

CUT = frozenset({"length", "model_length"})
"""Finish reasons of truncated answers: the request's limit or, for Mistral, the model's."""
FILTERED = frozenset({"content_filter", "sensitive"})
"""Finish reasons of filtered answers. `sensitive` is Zhipu's; Gemini writes `content_filter: RECITATION`."""
GAVE_UP = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})
"""Finish reasons of incomplete answers: vLLM's, OpenRouter's, DeepSeek's and Zhipu's."""


class Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = 0
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None

    @property
    def cached(self) -> int:
        """Cached tokens, as OpenAI, Kimi or DeepSeek report them."""
        details = self.prompt_tokens_details or Details()
        return details.cached_tokens or self.cached_tokens or self.prompt_cache_hit_tokens or 0

    @property
    def written(self) -> int:
        return (self.prompt_tokens_details or Details()).cache_write_tokens or 0

    @property
    def output_tokens(self) -> int:
        completion = self.completion_tokens or 0
        return (
            with_reasoning(self.prompt_tokens, completion, self.total_tokens or 0) if self.prompt_tokens else completion
        )


class ToolFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def arguments_text(self) -> str:
        """The arguments as a string. Some servers send an object."""
        if isinstance(self.arguments, dict):
            return msgspec.json.encode(self.arguments).decode()
        return self.arguments or ""


class ChatToolCall(msgspec.Struct):
    index: Any = 0
    """A number. Some servers send null in unstreamed calls."""
    id: str | None = None
    function: ToolFunction = msgspec.field(default_factory=ToolFunction)


class ContentPart(msgspec.Struct):
    """A part of a content list, from Mistral's reasoning models."""

    type: str = ""
    text: str | None = None
    thinking: "str | list[ContentPart] | None" = None


class ChatDelta(msgspec.Struct):
    """A message or a piece of one."""

    content: str | list[ContentPart] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None

    @property
    def reasoning_text(self) -> str:
        parts = self.content if isinstance(self.content, list) else ()
        return self.reasoning_content or self.reasoning or "".join(_words(part.thinking) for part in parts)

    @property
    def words(self) -> str:
        return _words(self.content)

    @property
    def visible_text(self) -> str:
        return self.words or self.refusal or ""


def _words(content: str | list[ContentPart] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content if part.type == "text")
    return content or ""


class ChatChoice(msgspec.Struct):
    message: ChatDelta | None = None
    delta: ChatDelta | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """vLLM: the stop string that matched."""
    usage: ChatUsage | None = None


class ChatCompletion(msgspec.Struct):
    """A completion or a chunk."""

    id: str | None = None
    model: str = ""
    choices: list[ChatChoice] = []
    usage: ChatUsage | None = None


def read(data: bytes) -> ChatCompletion:
    """Read a completion, adding an id and numbers of tool calls if missing. Raises BadAnswer.

    Some servers count tokens as 12.0 or "12", which is no reason to lose the answer.
    """
    try:
        completion = msgspec.json.decode(data, type=ChatCompletion, strict=False)
    except NOT_JSON:
        raise BadAnswer("answered with an invalid completion") from None
    completion.id = completion.id or f"chatcmpl-{secrets.token_hex(12)}"
    for choice in completion.choices:
        choice.finish_reason = (choice.finish_reason or "").partition(":")[0] or None
        completion.usage = completion.usage or choice.usage
        if choice.finish_reason in GAVE_UP:
            raise BadAnswer(f"ended its answer before it was complete: {choice.finish_reason}")
        for index, call in enumerate((choice.message and choice.message.tool_calls) or ()):
            call.index = index
    return completion
