"""One record per request at its end, whatever the end. Metrics are one sink of them, the ledger another.

| how it ended                                       | end         | status        | code        |
|----------------------------------------------------|-------------|---------------|-------------|
| answered                                           | done        | 200           | -           |
| the engine's own refusal (such as a prompt too long) | refused   | the engine's  | -           |
| refused before it ran: bad, unknown, full, loading | refused     | the error's   | the error's |
| `Prefer: respond-async`                            | refused     | 202           | not_yet     |
| the client left, or stopped reading                | cancelled   | as far as sent | -          |
| its deadline passed                                | deadline    | 504, or as sent | the error's |
| the engine died under it                           | engine_died | 503, or as sent | the error's |
| anything else that broke                           | failed      | the error's, or as sent | the error's |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from console.texts import Transcript
from models.messages import Usage
from runtime.gateway.backend import LOCAL, Target
from runtime.gateway.context import RequestContext
from tenants.ledger.rows import Entry
from tenants.limits.limiter import Admission


class End(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ENGINE_DIED = "engine_died"
    FAILED = "failed"


class RequestStage(NamedTuple):
    """A part of a request's way, in seconds since its body was there."""

    name: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Who asked for what, how it ended, what it took."""

    context: RequestContext
    endpoint: str
    """The path; never with anything of the client's in it."""
    target: Target | None
    """None: refused before its name was known."""
    end: End
    status: int | None
    """That the client was told; None: it left before."""
    code: str | None
    """Of the error that ended it."""
    usage: Usage
    """By the engine's own count, as far as it is known."""
    seconds: Mapping[str, float]
    """`receive`, then `total`; of it `queue`, of that `load` and `swap`, once it had a turn; `first`
    until the first byte.

    `before`: of `total`, until its last attempt began; `away`: of that, attempts at providers that failed.
    `device` is its part of the machine's time, `cold` of a load that it caused."""
    entry: Entry | None = None
    """How it began in the ledger, if there is one."""
    admission: Admission | None = None
    """What its team's limits reserved for it, if there are any; of its last attempt."""
    pairs: int = 0
    """Of query and document, that were answered."""
    pool: str = ""
    """The part of the target's places that it ran in; '': none, or it never ran."""
    first_goal: float | None = None
    """Seconds within which it was to begin."""
    texts: Transcript | None = field(default=None, repr=False)
    """Of a team that has them kept; for the console alone."""
    is_stream: bool = False
    """Its answer came bit by bit: what came after the first byte tells how fast it was made."""
    causes: dict[str, float] = field(init=False)
    """Where its time went: queue, load, swap, prefill (until the first byte), decode, and, where one was asked,
    provider. None before it had a turn. Several sinks tell it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "causes", self._causes())

    def stages(self) -> list[RequestStage]:
        """Of its last attempt, one after the other. None before it had a turn.

        In which order it waited for the load, its turn and the adapter is not noted: it is told as it usually is.
        """
        seconds = self.seconds
        if "queue" not in seconds:
            return []
        before, total = seconds.get("before", 0.0), seconds["total"]
        turn = min(before + seconds["queue"], total)
        if self.target is not None and self.target.backend != LOCAL:
            return [RequestStage("provider", turn, total)]
        swapping = turn - min(seconds.get("swap", 0.0), turn - before)
        loaded = min(before + seconds["load"], swapping)
        first = min(max(seconds.get("first", total), turn), total)
        return [
            RequestStage("load", before, loaded),
            RequestStage("queue", loaded, swapping),
            RequestStage("swap", swapping, turn),
            RequestStage("prefill", turn, first),
            RequestStage("decode", first, total),
        ]

    def tokens(self) -> dict[str, int]:
        """What it used, by kind; of a kind that it used."""
        usage = self.usage
        counts = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "completion": usage.completion_tokens}
        return {kind: count for kind, count in counts.items() if count}

    def _causes(self) -> dict[str, float]:
        stages = self.stages()
        if not stages:
            return {}
        spent = dict.fromkeys(("queue", "load", "swap", "prefill", "decode"), 0.0)
        away = self.seconds.get("away", 0.0)
        if away:
            spent["provider"] = away
        spent["queue"] = max(0.0, self.seconds.get("before", 0.0) - away)
        for stage in stages:
            spent[stage.name] = spent.get(stage.name, 0.0) + stage.until - stage.since
        return spent


class Sink(Protocol):
    def take(self, record: RequestRecord) -> None:
        """Never raises and never waits: what is slow has a queue and a thread of its own."""
        ...


@runtime_checkable
class AttemptSink(Protocol):
    """A sink that also counts the attempts before the last one, whose end is the request's."""

    def attempt(self, record: RequestRecord) -> None:
        """The end of one, while the request goes on with another, or beside it."""
        ...
