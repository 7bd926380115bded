"""Chooses a provider's path, body and translator for a chat request.

| requested path       | if supported   | otherwise the first supported of                             | none |
|----------------------|----------------|--------------------------------------------------------------|------|
| chat/completions     | passed on      | `messages`                                                   | 400  |
| messages             | passed on      | `chat/completions`                                           | 400  |
| responses            | passed on      | `chat/completions`; `messages`, translated in two steps      | 400  |
| others               | passed on      | 400: continuing a prompt is not a conversation, and counting |      |
|                      |                | requires the tokenizer                                       |      |
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from models import sse
from registry.errors import BadRequest
from registry.recipes.provider import Provider, ProviderModel, Surface
from routing.providers.translation import from_chat, from_messages, from_responses
from routing.providers.translation.reading import wrong


class Translator(Protocol):
    """Translates one answer from the provider's dialect back to the client's."""

    def whole(self, data: bytes) -> bytes:
        """Translate an unstreamed answer. Raises BadAnswer."""
        ...

    def event(self, event: bytes) -> bytes:
        """Return the client's events for one of the provider's, empty for none. Raises BadAnswer."""
        ...

    def end(self) -> bytes:
        """Return the bytes after the provider's last event."""
        ...


class ChainedTranslator:
    """Two translators in sequence."""

    def __init__(self, first: Translator, second: Translator) -> None:
        self._first, self._second = first, second

    def whole(self, data: bytes) -> bytes:
        return self._second.whole(self._first.whole(data))

    def event(self, event: bytes) -> bytes:
        return self._on(self._first.event(event))

    def end(self) -> bytes:
        return self._on(self._first.end()) + self._second.end()

    def _on(self, events: bytes) -> bytes:
        """Translate our own events again. Each is complete, and its length is already bounded."""
        return b"".join(self._second.event(event) for event in sse.Splitter(sys.maxsize).feed(events))


OPTIONS, LIMIT = "stream_options", "n_predict"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    surface: Surface
    body: bytes
    stream: bool
    wants_usage: bool
    """Whether the client sees OpenAI's last chunk, which only has usage."""
    translator: Translator | None = None


def plan(provider: Provider, model: ProviderModel, path: str, body: Mapping[str, Any]) -> PlannedCall:
    """Return the call to make. Raises BadRequest if the provider cannot answer the path or a field."""
    requested, spoken = path.removeprefix("/v1/"), provider.spoken
    if not isinstance(stream := body.get("stream") or False, bool):  # some providers would stream, and seem broken
        raise wrong("stream", "true or false")
    translator: Translator | None = None
    if requested in spoken:
        surface, sent = Surface(requested), dict(body)
        if surface in (Surface.CHAT, Surface.COMPLETIONS):
            _move_limit(sent)
    elif requested == Surface.CHAT and Surface.MESSAGES in spoken:
        surface = Surface.MESSAGES
        sent, translator = from_chat.translated(body, model.max_output)
    elif requested == Surface.MESSAGES and Surface.CHAT in spoken:
        surface = Surface.CHAT
        sent, translator = from_messages.translated(body)
        sent[provider.bound] = sent.pop("max_completion_tokens")
    elif requested == Surface.RESPONSES and (Surface.CHAT in spoken or Surface.MESSAGES in spoken):
        surface, sent, translator = _responses(provider, model, body)
    else:
        raise unanswered(provider, path)
    wants_usage = translator is not None or _asks_usage(body)
    if stream and provider.stream_usage and surface in (Surface.CHAT, Surface.COMPLETIONS):
        options = sent.get(OPTIONS)
        if options is None or isinstance(options, dict):
            sent[OPTIONS] = {**(options or {}), "include_usage": True}
    return PlannedCall(surface, msgspec.json.encode({**sent, "model": model.name}), stream, wants_usage, translator)


def _move_limit(sent: dict[str, Any]) -> None:
    """Rename llama.cpp's limit, by which the request was admitted but which few providers know. Raises BadRequest."""
    limit = sent.pop(LIMIT, None)
    if limit is None:
        return
    if any(sent.get(name) is not None for name in ("max_completion_tokens", "max_tokens")):
        raise BadRequest(f"Send 'max_tokens' alone, without '{LIMIT}'.", param=LIMIT, code="unknown_parameter")
    sent["max_tokens"] = limit


def _responses(
    provider: Provider, model: ProviderModel, body: Mapping[str, Any]
) -> tuple[Surface, dict[str, Any], Translator]:
    read = from_responses.translated(body)
    if Surface.CHAT not in provider.spoken:
        try:
            sent, answers = from_chat.translated(read.body, model.max_output)
        except BadRequest as error:
            raise read.in_client_terms(error) from None
        return Surface.MESSAGES, sent, ChainedTranslator(answers, read.answers)
    sent = read.body
    sent.pop(OPTIONS, None)
    if (bound := sent.pop("max_completion_tokens", None)) is not None:
        sent[provider.bound] = bound
    return Surface.CHAT, sent, read.answers


def unanswered(provider: Provider, path: str) -> BadRequest:
    return BadRequest(
        f"Provider '{provider.id}' does not answer {path}, and none of its other paths can stand for it. It answers: "
        f"{', '.join(f'/v1/{surface}' for surface in answered(provider))}.",
        code="unsupported_endpoint",
        param="model",
    )


def audio(provider: Provider, task: str) -> Surface:
    """Return the path for audio. Raises BadRequest."""
    surface = Surface.TRANSLATIONS if task == "translate" else Surface.TRANSCRIPTIONS
    if surface not in provider.spoken:
        raise unanswered(provider, f"/v1/{surface}")
    return surface


def answered(provider: Provider) -> list[Surface]:
    """Return the dialects that the provider supports, and those that can be translated to them."""
    chat = {Surface.CHAT, Surface.MESSAGES}
    more = {*chat, Surface.RESPONSES} if chat & set(provider.spoken) else set()
    return [surface for surface in Surface if surface in provider.spoken or surface in more]


def _asks_usage(body: Mapping[str, Any]) -> bool:
    stream_options = body.get(OPTIONS)
    return isinstance(stream_options, dict) and stream_options.get("include_usage") is True
