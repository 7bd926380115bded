"""Chat: calls that generate text, and calls that only count or split tokens."""

from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from models.messages import HttpCall, ResponseEnd
from models.protocol import ChatEngine
from models.tasks.kind import CallSummary, Demand, EmitEvent, TaskKind, WorkRates
from registry.recipes.definition import Task

SCHEMAS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "guided_json_object", "grammar", "json_schema", "regex", "ebnf", "output_format",
)  # fmt: skip
"""Fields of chat bodies that constrain the form of an answer."""
FORMATS = ("text", "output_config")
"""Fields whose `format` does so, in OpenAI's Responses and in Anthropic's Messages."""
IMAGES = ("image", "image_url", "input_image")
_WHOLE = TypeAdapter(int)
_COMPLETIONS_TOKENS = 16
"""vLLM's default for max_tokens of /v1/completions."""
TOKEN_LIMITS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens", "n_predict"),
    "/v1/completions": ("max_tokens", "n_predict"),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""Calls that generate tokens, with the fields that limit them. All others only count or split tokens."""


@dataclass(frozen=True, slots=True)
class ChatPayload:
    """A call of the chat family. The backend puts its own model name into `body`."""

    path: str
    body: Mapping[str, Any]
    fills: bool = False
    """Whether to use all the room for the answer instead of the path's default, if the client set no limit."""
    continues: bool = False
    """Whether the last message is the beginning of the answer. Providers have their own rule for it."""
    is_translated: bool = False
    """Whether `body` was translated from another dialect, so that the client did not choose the names of its fields."""


async def _run(engine: ChatEngine, request: HttpCall, emit: EmitEvent) -> None:
    answer = engine.call(request)
    try:
        async for event in answer:
            emit(event, answer.usage)
    except CancelledError:
        await answer.aclose()
        emit(ResponseEnd(usage=answer.usage))  # the cost of an aborted request counts, too
        raise


# --- demand ----------------------------------------------------------------------------------------------------------
def _demand(call: ChatPayload, context: int, _audio_seconds: float) -> Demand:
    if call.path not in TOKEN_LIMITS:
        return Demand()
    body = call.body
    prompts = _prompts(body) if call.path == "/v1/completions" else 1
    size = len(msgspec.json.encode(body))
    prompt = min(size, context * prompts)
    answers = prompts * max(1, _whole(body.get("n")) or 1, _whole(body.get("best_of")) or 1)
    limits = [limit for name in TOKEN_LIMITS[call.path] if (limit := body.get(name)) is not None]
    if not limits and call.path == "/v1/completions" and not call.fills:
        limits = [_COMPLETIONS_TOKENS]
    given = next((whole for limit in limits if (whole := _whole(limit)) is not None), None)
    output = answers * (context if given is None else min(given, context))
    return Demand(prompt, output, 0 if given is None else output)


def _prompts(body: Mapping[str, Any]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


def _whole(value: object) -> int | None:
    """Return a number as vLLM reads it ('5' and 5.0 are 5); None for anything else, which it refuses."""
    if value is None:  # the usual case; an exception takes as long as all the rest
        return None
    try:
        number = _WHOLE.validate_python(value)
    except ValidationError:
        return None
    return number if number >= 0 else None


# --- for routers -----------------------------------------------------------------------------------------------------
def _summary(call: ChatPayload) -> CallSummary:
    body = call.body
    summary = CallSummary(user=_user_of(body), tools=bool(body.get("tools")), json_schema=_has_schema(body))
    for role, content in _turns(body):
        _add(summary, role, content)
    return summary


def _user_of(body: Mapping[str, Any]) -> str:
    """Return the client's own user, from OpenAI's or Anthropic's field."""
    metadata = body.get("metadata")
    named = body.get("user") or (metadata.get("user_id") if isinstance(metadata, dict) else None)
    return named if isinstance(named, str) else ""


def _turns(body: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Iterate over roles and contents in order, for chat, Messages, Responses and Completions."""
    for system in (body.get("system"), body.get("instructions")):
        if system:
            yield "system", system
    for name in ("messages", "input"):
        turns = body.get(name)
        if isinstance(turns, str):
            yield "user", turns
        elif isinstance(turns, list):
            for turn in turns:
                if isinstance(turn, dict) and "output" in turn:  # a tool's output in Responses
                    yield "tool", turn["output"]
                elif isinstance(turn, dict):  # of Responses' items only messages have a role; the rest is the model's
                    other = "user" if turn.get("type", "message") == "message" else "assistant"
                    yield str(turn.get("role", other)), turn.get("content")
    prompt = body.get("prompt")
    for number, one in enumerate(prompt if isinstance(prompt, list) else [prompt]):
        if isinstance(one, str):
            yield "user" if number == 0 else "more", one


def _add(summary: CallSummary, role: str, content: object) -> None:
    text, images = _text(content)
    summary.characters += len(text)
    summary.images = summary.images or images
    for part in content if isinstance(content, list) and role == "user" else ():
        if isinstance(part, dict) and part.get("type") == "tool_result":  # Anthropic puts them in the user's turns
            _add(summary, "tool", part.get("content"))
    summary.is_answered = summary.is_answered or role in ("assistant", "tool")
    if role in ("system", "developer"):
        summary.systems.append(text)
    elif role == "user" and text:
        summary.first = summary.first or text
        summary.last = text
        summary.turns += 1


def _text(content: object) -> tuple[str, bool]:
    """Return the text of a turn, and whether it has an image."""
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


CHAT = TaskKind(
    task=Task.CHAT,
    call=ChatPayload,
    message=HttpCall,
    run=_run,
    demand=_demand,
    summary=_summary,
    work=WorkRates(most_per_byte=1.0, answer_tokens=64.0),
)
