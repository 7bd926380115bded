"""The properties of a task that are needed outside its engines."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from models.messages import Event, ResponseEnd, Usage
from registry.bounds import Bounds
from registry.recipes.definition import Task

C = TypeVar("C")
Run = Callable[[Any, Any, "EmitEvent"], Awaitable[None]]


class EmitEvent(Protocol):
    def __call__(self, event: Event, usage: Usage | None = None) -> None:
        """Send an event to the gateway. usage: of the request so far."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """Upper bounds on what a request can use, known before it runs."""

    prompt: int = 0
    output: int = 0
    requested_output: int = 0
    """Part of the output that the client requested explicitly."""
    audio_ms: int = 0
    pairs: int = 0


@dataclass(slots=True)
class CallSummary:
    """A call's features for a router."""

    first: str = ""
    """The first text of the user."""
    last: str = ""
    """The last text of the user; for a call without turns, its prompt, input or query."""
    systems: list[str] = field(default_factory=list)
    """Parts of the system text. A list, because joining 100,000 parts one by one takes quadratic time."""
    turns: int = 0
    is_answered: bool = False
    """Whether it has turns of a model or a tool, as all but the first request of an agent have."""
    characters: int = 0
    """Characters of the whole prompt."""
    user: str = ""
    """The client's own user."""
    language: str | None = None
    images: bool = False
    tools: bool = False
    json_schema: bool = False
    """Whether the answer must follow a JSON schema or a grammar."""


@dataclass(frozen=True, slots=True)
class WorkRates:
    """Estimates of work before any was measured, in prompt tokens (`work_of`)."""

    byte: float = 0.25
    most_per_byte: float = float("inf")
    answer_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind(Generic[C]):
    """A task, with its calls and everything that depends on it outside engines and dialects."""

    task: Task
    call: type[C]
    """The type of a call as a dialect creates it."""
    message: type[Any]
    """The type of a call for its engine, a `models.messages.Message`; the same type for most tasks."""
    run: Run
    """Runs a `message` on an engine in its slot. ResponseEnd is the last event, even if cancelled."""
    demand: Callable[[C, int, float], Demand]
    """Upper bounds of a call, given the model's context length and the longest recording in seconds."""
    summary: Callable[[C], CallSummary] = lambda _: CallSummary()
    check: Callable[[Sequence[C], Bounds], None] | None = None
    """Raises BadRequest for calls that contain more than one request may."""
    pairs: Callable[[C], int] = lambda _: 0
    """Number of pairs of query and document in a call, which have their own price."""
    work: WorkRates = WorkRates()


async def run_whole(answer: Awaitable[tuple[Event, Usage]], emit: EmitEvent) -> None:
    """Run a call whose answer is one event."""
    event, usage = await answer
    emit(event)
    emit(ResponseEnd(usage=usage))


def text_size(text: str | list[int], most: int = 0) -> int:
    """Return an upper bound on the tokens of a text, with its two end tokens. most: truncate there; 0 for no limit."""
    tokens = len(text.encode(errors="replace")) if isinstance(text, str) else len(text)
    return 2 + (min(tokens, most) if most else tokens)


# --- work ------------------------------------------------------------------------------------------------------------
ANSWER_TOKEN, CACHED_TOKEN, AUDIO_SECOND = 4.0, 0.1, 50.0
"""Work in one unit for all tasks: the prefill of one prompt token. Its accuracy decides how evenly teams share a model.

| a generated token | a cached token | a second of audio               | a pair, a text |
|-------------------|----------------|---------------------------------|----------------|
| 4                 | 0.1            | 50: frames of Whisper's encoder | by its tokens  |
"""


def work_of(usage: Usage) -> float:
    """Return the work of a finished request."""
    return max(1.0, read_work(usage) + usage.completion_tokens * ANSWER_TOKEN)


def read_work(usage: Usage) -> float:
    """Return the work of a request's prompt and audio."""
    read = usage.prompt_tokens - usage.cached_tokens * (1 - CACHED_TOKEN)
    return read + usage.audio_seconds * AUDIO_SECOND
