"""The one record of a finished request, for metrics, ledger and log.

| how it ended                                       | end         | status        | code        |
|----------------------------------------------------|-------------|---------------|-------------|
| answered                                           | done        | 200           | -           |
| the engine's own refusal (such as a prompt too long) | refused   | the engine's  | -           |
| refused before it ran: bad, unknown, full, loading | refused     | the error's   | the error's |
| `Prefer: respond-async`                            | refused     | 202           | not_yet     |
| the client left, or stopped reading                | cancelled   | as far as sent | -          |
| a line of a batch that gave its turn up            | cancelled   | the error's   | the error's |
| its deadline passed                                | deadline    | 504, or as sent | the error's |
| the engine died under it                           | engine_died | 503, or as sent | the error's |
| anything else that broke                           | failed      | the error's, or as sent | the error's |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from console.texts import Transcript
from models.messages import Usage
from routing.replicas import Reason
from runtime.gateway.context import RequestContext, Trace
from runtime.gateway.target import Target
from tenants.ledger.rows import BATCH, Entry
from tenants.limits.limiter import Admission


class End(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ENGINE_DIED = "engine_died"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request's caller, outcome, and costs."""

    context: RequestContext
    endpoint: str
    """The route's path, without any text from the client."""
    target: Target | None
    """None if the request was refused before its name was resolved."""
    end: End
    status: int | None
    """The status that was sent. None if the client left before that."""
    code: str | None
    """Code of the error that ended it."""
    usage: Usage
    """Usage of the last attempt as the engine counted it, as far as known."""
    seconds: Mapping[str, float]
    """`receive`, then `total`. Parts of the total: `queue`, which includes `load` and `swap`, once it had a turn;
    `first` until the first byte; `before` until its last attempt began; `away` for failed attempts at providers.

    `device` is its share of the machine's time, `cold` that of a load it caused."""
    attempt: int = 1
    """Number of its last attempt."""
    entry: Entry | None = None
    """The ledger's row for its beginning, if any."""
    admission: Admission | None = None
    """The limits' reservation for its last attempt, if any."""
    pairs: int = 0
    """Scored pairs of query and document."""
    routing_tokens: int = 0
    """Tokens of the embedding that chose its target."""
    routing_cost: int = 0
    """Their list price, in millionths of the currency."""
    pool: str = ""
    """The recipe's pool in which it ran. Empty if there are none, or if it never ran."""
    replica: int = 0
    """Number of the replica that answered. 0 if the model has only one, or if it never ran."""
    replica_reason: Reason | None = None
    """The reason for this replica."""
    first_goal: float | None = None
    """The pool's goal for the first byte, in seconds."""
    is_stream: bool = False
    """Whether the answer was streamed, so that the time after the first byte tells its speed."""
    warning: str = ""
    """Fields that were left out of the request, as the answer's header gives them."""
    failed_attempts: tuple[str, ...] = ()
    """Model and error code of each attempt before the last."""
    transcript: Transcript | None = field(default=None, repr=False)
    """Texts of the request if its team stores them, for the console only."""
    trace: Trace | None = field(default=None, repr=False)
    causes: dict[str, float] = field(init=False)
    """Seconds by cause: queue, load, swap, prefill (until the first byte), decode and, if one was called, provider.
    Empty before it had a turn. Computed once for all sinks."""
    charged: Usage = field(init=False)
    """Usage charged to the team, with the routing tokens counted as prompt tokens. A batch line is charged only for
    a complete answer: any other attempt is repeated or ends as an error."""
    cost: int = field(init=False)
    """List price in millionths of the currency. Pairs are charged only if all were scored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "causes", self._causes())
        is_repeated = self.context.source == BATCH and (self.end is not End.DONE or (self.status or 0) >= 400)
        object.__setattr__(self, "charged", Usage() if is_repeated else self._with_routing())
        object.__setattr__(self, "cost", 0 if is_repeated else self._cost())

    def _with_routing(self) -> Usage:
        if not self.routing_tokens:
            return self.usage
        return replace(self.usage, prompt_tokens=self.usage.prompt_tokens + self.routing_tokens)

    def _cost(self) -> int:
        price, usage = None if self.target is None else self.target.price, self.usage
        if price is None:
            return self.routing_cost
        return self.routing_cost + price.cost(
            prompt=usage.prompt_tokens,
            cached=usage.cached_tokens,
            written=usage.written_tokens,
            output=usage.completion_tokens,
            audio_ms=round(usage.audio_seconds * 1e3),
            pairs=self.pairs,
        )

    def stages(self) -> Sequence[tuple[str, float, float]]:
        """Consecutive stages of its last attempt: name, begin and end in seconds since its body arrived.

        Empty before it had a turn. The order of load, queue and adapter is not measured; the usual order is assumed.
        """
        seconds = self.seconds
        if "queue" not in seconds:
            return ()
        before, total = seconds.get("before", 0.0), seconds["total"]
        turn = min(before + seconds["queue"], total)
        if self.target is not None and self.target.provider:
            return (("provider", turn, total),)
        swapping = turn - min(seconds.get("swap", 0.0), turn - before)
        loaded = min(before + seconds["load"], swapping)
        first = min(max(seconds.get("first", total), turn), total)
        return (
            ("load", before, loaded),
            ("queue", loaded, swapping),
            ("swap", swapping, turn),
            ("prefill", turn, first),
            ("decode", first, total),
        )

    def tokens(self) -> dict[str, int]:
        """Tokens by kind, for the kinds that were used."""
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
        for name, since, until in stages:
            spent[name] = spent.get(name, 0.0) + until - since
        return spent


class Sink(Protocol):
    def take(self, record: RequestRecord) -> None:
        """Take a record. Must neither raise nor block; slow sinks have a queue and a thread."""
        ...


@runtime_checkable
class AttemptSink(Protocol):
    """A sink that also counts the attempts before the last one."""

    def attempt(self, record: RequestRecord) -> None:
        """Take the record of a failed attempt of a request that goes on."""
        ...
