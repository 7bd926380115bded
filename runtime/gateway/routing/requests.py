"""What a router sees of a request, from the calls that it would make: the same for every dialect."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.messages import EmbedRequest, RerankRequest, TranscribeRequest
from registry.recipes.router import RouterSpec
from routing.decision import Features
from runtime.gateway.context import RequestContext
from runtime.gateway.target import Call, ChatPayload

SCHEMAS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "output_format")
"""Fields of chat bodies that bind the form of an answer."""
FORMATS = ("text", "output_config")
"""Fields whose `format` binds it: of OpenAI's responses, of Anthropic's messages."""
IMAGES = ("image", "image_url", "input_image")


@dataclass(frozen=True, slots=True)
class RouteInput:
    features: Features
    conversation: bytes | None
    """Its key; None: nothing holds it together with others."""
    is_continued: bool
    """It is not the first request of its conversation, as far as its body tells."""


def read(endpoint: str, calls: Sequence[Call], context: RequestContext, router: RouterSpec) -> RouteInput:
    """Only headers that the router names are looked at."""
    named_headers = {name for rule in router.rules for name in rule.when.headers} | {router.conversation.header}
    headers = {
        name: value.decode("latin-1")
        for raw, value in context.headers
        if (name := raw.decode("latin-1").lower()) in named_headers
    }
    call = calls[0] if calls else None
    summary = _summarise(call)
    body: Mapping[str, Any] = call.body if isinstance(call, ChatPayload) else {}
    features = Features(
        text=summary.last,
        endpoint=endpoint,
        characters=summary.characters,
        tools=bool(body.get("tools")),
        images=summary.images,
        json_schema=_has_schema(body),
        team=context.caller.team,
        service_class=context.service_class.label,
        language=call.language if isinstance(call, TranscribeRequest) else None,
        headers=headers,
    )
    named = headers.get(router.conversation.header)
    if named:
        return RouteInput(features, key_of("header", router.id, context.caller.team, named), True)
    if not summary.first:
        return RouteInput(features, None, False)
    key = key_of("turns", router.id, context.caller.team, _user_of(body), "".join(summary.systems), summary.first)
    return RouteInput(features, key, summary.turns > 1 or summary.is_answered)


def key_of(*parts: str) -> bytes:
    """A digest, so that no words of the conversation are stored."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode(errors="replace")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def _user_of(body: Mapping[str, Any]) -> str:
    """The client's own user, as OpenAI's bodies name one, or Anthropic's."""
    metadata = body.get("metadata")
    named = body.get("user") or (metadata.get("user_id") if isinstance(metadata, dict) else None)
    return named if isinstance(named, str) else ""


@dataclass(slots=True)
class _TurnSummary:
    first: str = ""
    last: str = ""
    systems: list[str] = field(default_factory=list)
    """Parts: to join them one by one takes time with the square of their number, and there may be 100,000."""
    turns: int = 0
    is_answered: bool = False
    """Somebody else has spoken: of an agent's many requests only the first is without the calls of its tools."""
    characters: int = 0
    images: bool = False


def _summarise(call: Call | None) -> _TurnSummary:
    summary = _TurnSummary()
    if isinstance(call, EmbedRequest):
        texts = [text for text in call.inputs if isinstance(text, str)]
        summary.last, summary.characters = (texts[0] if texts else ""), sum(map(len, texts))
    elif isinstance(call, RerankRequest):
        summary.last, summary.characters = call.query, len(call.query) + sum(map(len, call.documents))
    elif isinstance(call, ChatPayload):
        for role, content in _turns(call.body):
            _add(summary, role, content)
    return summary


def _turns(body: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Role and content, in their order: of chat, messages, responses, completions."""
    for system in (body.get("system"), body.get("instructions")):
        if system:
            yield "system", system
    for name in ("messages", "input"):
        turns = body.get(name)
        if isinstance(turns, str):
            yield "user", turns
        elif isinstance(turns, list):
            for turn in turns:
                if isinstance(turn, dict) and "output" in turn:  # of a tool, in Responses
                    yield "tool", turn["output"]
                elif isinstance(turn, dict):
                    yield str(turn.get("role", "user")), turn.get("content")
    prompt = body.get("prompt")
    for number, one in enumerate(prompt if isinstance(prompt, list) else [prompt]):
        if isinstance(one, str):
            yield "user" if number == 0 else "more", one


def _add(summary: _TurnSummary, role: str, content: object) -> None:
    text, images = _text(content)
    summary.characters += len(text)
    summary.images = summary.images or images
    for part in content if isinstance(content, list) and role == "user" else ():
        if isinstance(part, dict) and part.get("type") == "tool_result":  # Anthropic's are within turns of a user
            _add(summary, "tool", part.get("content"))
    summary.is_answered = summary.is_answered or role in ("assistant", "tool")
    if role in ("system", "developer"):
        summary.systems.append(text)
    elif role == "user" and text:
        summary.first = summary.first or text
        summary.last = text
        summary.turns += 1


def _text(content: object) -> tuple[str, bool]:
    """The words of a turn, and whether it has an image."""
    if isinstance(content, str):
        return content, False
    texts, images = list[str](), False
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            if isinstance(text := part.get("text"), str):
                texts.append(text)
            images = images or part.get("type") in IMAGES
    return "\n".join(texts), images


def _has_schema(body: Mapping[str, Any]) -> bool:
    for name in SCHEMAS:
        value = body.get(name)
        if value and not (isinstance(value, dict) and value.get("type") == "text"):
            return True
    for name in FORMATS:
        value = body.get(name)
        form = value.get("format") if isinstance(value, dict) else None
        if isinstance(form, dict) and form.get("type") not in (None, "text"):
            return True
    return False
