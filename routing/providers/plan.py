"""Which of a provider's paths answers a request of the chat family, with which body, and who translates.

| asked for            | it speaks that | it speaks the other one                        | neither |
|----------------------|----------------|------------------------------------------------|---------|
| chat/completions     | as it is       | translated to `messages` and back              | 400     |
| messages             | as it is       | translated to `chat/completions` and back      | 400     |
| the others           | as it is       | 400: there is nothing to translate it to       | 400     |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from registry.errors import BadRequest
from registry.recipes.provider import Provider, ProviderModel, Surface
from routing.providers.translation import from_chat, from_messages

OPTIONS = "stream_options"


class Translator(Protocol):
    """From the provider's dialect back to the client's, for one answer."""

    def whole(self, data: bytes) -> bytes:
        """Raises BadAnswer."""
        ...

    def event(self, event: bytes) -> bytes:
        """The client's events for one of the provider's; empty: none. Raises BadAnswer."""
        ...

    def end(self) -> bytes:
        """What comes after the provider's last event."""
        ...


@dataclass(frozen=True, slots=True)
class Planned:
    surface: Surface
    body: bytes
    stream: bool
    usage_wanted: bool
    """Whether the client is to see OpenAI's last chunk, of usage alone."""
    translator: Translator | None = None


def plan(provider: Provider, model: ProviderModel, path: str, body: Mapping[str, Any]) -> Planned:
    """Raises BadRequest for what this provider has no path for, or a field that cannot be translated."""
    asked, spoken = path.removeprefix("/v1/"), provider.spoken
    stream = body.get("stream") is True
    translator: Translator | None = None
    if asked in spoken:
        surface, sent = Surface(asked), dict(body)
    elif asked == Surface.CHAT and Surface.MESSAGES in spoken:
        surface = Surface.MESSAGES
        sent, translator = from_chat.translated(body, model.max_output)
    elif asked == Surface.MESSAGES and Surface.CHAT in spoken:
        surface = Surface.CHAT
        sent, translator = from_messages.translated(body)
        sent[provider.bound] = sent.pop("max_completion_tokens")
    else:
        raise BadRequest(
            f"Provider '{provider.id}' does not answer {path}. It answers: "
            f"{', '.join(f'/v1/{surface}' for surface in spoken)}.",
            code="unsupported_endpoint",
            param="model",
        )
    usage_wanted = translator is not None or _asks_usage(body)
    if stream and provider.stream_usage and surface in (Surface.CHAT, Surface.COMPLETIONS):
        given = sent.get(OPTIONS)
        if given is None or isinstance(given, dict):
            sent[OPTIONS] = {**(given or {}), "include_usage": True}
    return Planned(surface, msgspec.json.encode({**sent, "model": model.name}), stream, usage_wanted, translator)


def _asks_usage(body: Mapping[str, Any]) -> bool:
    options = body.get(OPTIONS)
    return isinstance(options, dict) and options.get("include_usage") is True
