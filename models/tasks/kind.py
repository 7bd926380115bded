"""A task's properties that the product needs, apart from the engines for it."""

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
        """Send an event to the gateway. usage: what the request has used so far."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """The most that a request can use, known before it runs."""

    prompt: int = 0
    output: int = 0
    requested_output: int = 0
    """Part of the output that the client requested by number."""
    audio_ms: int = 0
    pairs: int = 0


@dataclass(slots=True)
class CallSummary:
    """A call's features for a router."""

    first: str = ""
    """The first text of the user."""
    last: str = ""
    """The last text of the user; of a call without turns its prompt, input or query."""
    systems: list[str] = field(default_factory=list)
    """Parts: to join them one by one takes time with the square of their number, and there may be 100,000."""
    turns: int = 0
    is_answered: bool = False
    """A model or a tool has answered already: only an agent's first request comes without their turns."""
    characters: int = 0
    """Characters of the whole prompt."""
    user: str = ""
    """The client's own user."""
    language: str | None = None
    images: bool = False
    tools: bool = False
    json_schema: bool = False
    """The answer has to follow a JSON schema or a grammar."""


@dataclass(frozen=True, slots=True)
class WorkRates:
    """Work before any was measured, in prompt tokens (`models.work`)."""

    byte: float = 0.25
    most_per_byte: float = float("inf")
    answer_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind(Generic[C]):
    """A task: its calls, and what depends on it outside engines and dialects."""

    task: Task
    call: type[C]
    """One call as a dialect makes it."""
    message: type[Any]
    """The call as its engine takes it: a `models.messages.Message`; for most tasks the same type."""
    run: Run
    """Do a call, which is a `message`, on an engine in its slot. ResponseEnd is the last event, also when cancelled."""
    demand: Callable[[C, int, float], Demand]
    """The most a call can use, given the model's context length and the longest recording in seconds."""
    summary: Callable[[C], CallSummary] = lambda _: CallSummary()
    check: Callable[[Sequence[C], Bounds], None] | None = None
    """Raises BadRequest for calls that hold more than one request may."""
    pairs: Callable[[C], int] = lambda _: 0
    """Pairs of query and document in a call, which have a price of their own."""
    work: WorkRates = WorkRates()


async def run_whole(answer: Awaitable[tuple[Event, Usage]], emit: EmitEvent) -> None:
    """Run a call whose answer is one event."""
    event, usage = await answer
    emit(event)
    emit(ResponseEnd(usage=usage))


def text_size(text: str | list[int], most: int = 0) -> int:
    """The most tokens of a text, with its two ends. most: cut there; 0: not cut."""
    tokens = len(text.encode(errors="replace")) if isinstance(text, str) else len(text)
    return 2 + (min(tokens, most) if most else tokens)
