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

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from console.texts import Texts
from models.messages import Usage
from registry.errors import DeadlineExceeded, RoundhouseError
from runtime.gateway.backend import LOCAL, Lease, NotYet, Target, total
from runtime.gateway.context import RequestContext
from tenants.costs.device import DeviceTime
from tenants.ledger.rows import Entry
from tenants.limits.limiter import Admission

log = logging.getLogger("roundhouse.gateway")
LEFT = (asyncio.CancelledError, GeneratorExit)
"""What a client's leaving looks like from inside."""


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
    texts: Texts | None = field(default=None, repr=False)
    """Of a team that has them kept; for the console alone."""

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

    def causes(self) -> dict[str, float]:
        """Where its time went: queue, load, swap, prefill (until the first byte), decode, and, where one was asked,
        provider. None before it had a turn."""
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


class Recorder:
    """A request under way: notes what its record will hold. Only the first end counts."""

    def __init__(
        self,
        context: RequestContext,
        endpoint: str,
        sinks: Sequence[Sink],
        clock: Callable[[], float] = time.monotonic,
        device: DeviceTime | None = None,
    ) -> None:
        self.context, self.endpoint = context, endpoint
        self.target: Target | None = None
        self.entry: Entry | None = None
        self.admission: Admission | None = None
        self.pairs = 0
        self.texts: Texts | None = None
        self._device, self._cold = device, 0.0
        self._mark: float | None = None
        self._sinks, self._clock = sinks, clock
        self._began = clock()
        self._leases: list[Lease] = []
        self._first: float | None = None
        self._status: int | None = None
        self._ended, self._is_sent = False, False
        self._attempt_began = self._began
        self._failures: list[str] = []
        self._into: Recorder | None = None
        self._away = 0.0

    def received(self) -> None:
        """Its body is there: from here on the time is ours."""
        self._began = self._attempt_began = self._clock()

    def within(self, seconds: float) -> None:
        """It has a deadline now."""
        self.context = replace(self.context, deadline=time.monotonic() + seconds)

    def attempt_failed(self, error: RoundhouseError) -> RequestRecord:
        """Another attempt follows. The record of this one, for the ledger: the request's own comes at its end."""
        code, model = error.code, self.target.model if self.target else "-"
        record = self._record(self._end_by(error), self._status or error.status, code, self._attempt_began)
        self._failures.append(f"{model} {code}")
        self.context = replace(self.context, attempt=self.context.attempt + 1)
        self.entry, self._leases, self._first, self._status = None, [], None, None
        self._mark, self._cold = None, 0.0
        self._attempt_began = self._clock()
        if self.target is not None and self.target.backend != LOCAL:
            self._away += record.seconds["total"]
        return record

    # --- two attempts at a time -------------------------------------------------------------------------------------
    def beside(self, target: Target) -> "Recorder":
        """Of a second attempt while this one is under way. It has no record of its own: see `take_over`, `lost`."""
        context = replace(self.context, attempt=self.context.attempt + 1)
        other = Recorder(context, self.endpoint, (), self._clock, self._device)
        other.target, other._began = target, self._began
        other.admission = None if self.admission is None else self.admission.another()
        other._failures = [*self._failures, f"{self.target.model if self.target else '-'} hedged"]
        other._into = self
        return other

    def take_over(self, other: "Recorder") -> None:
        """The second attempt is the one that counts from now on."""
        for name in (
            "context", "target", "entry", "admission", "pairs", "_leases", "_first", "_status", "_mark", "_cold",
            "_failures", "_attempt_began",
        ):  # fmt: skip
            setattr(self, name, getattr(other, name))

    def lost(self) -> RequestRecord:
        """The other attempt was first: the record of this one, for the ledger."""
        return self._record(End.CANCELLED, self._status, "hedged", self._attempt_began)

    def leased(self, lease: Lease, *, is_cold: bool = False) -> None:
        """It has its turn. is_cold: it caused the load that it waited for."""
        self._leases.append(lease)
        self._cold += lease.load_seconds if is_cold else 0.0
        if self._device is not None and self._mark is None and not self._ended:
            self._mark = self._device.begin()

    def answered(self, status: int) -> None:
        """The answer's first byte is there."""
        if self._first is None:
            self._first, self._status = self._clock(), status

    def headers(self) -> dict[str, str]:
        """Who answers, and where the time went until now, for the answer's head."""
        target = {} if self.target is None else {**self.target.headers(), **self._order()}
        queue, load, swap = self._waited()
        first = (self._first or self._clock()) - self._began
        spent = {"queue": queue, "load": load, "swap": swap, "first": first}
        timing = ", ".join(f"{name};dur={seconds * 1e3:.2f}" for name, seconds in spent.items())
        failed = {"X-Roundhouse-Failed-Attempts": ", ".join(self._failures)} if self._failures else {}
        return {**target, **failed, **self.warnings(), "Server-Timing": timing}

    def warnings(self) -> dict[str, str]:
        """Of limits that it is over, and may be."""
        warned = [] if self.admission is None else self.admission.warnings
        return {"X-Roundhouse-Limit-Warning": "; ".join(warned)} if warned else {}

    def _order(self) -> dict[str, str]:
        """The class that it has, the one that it asked for where that is higher, and its part of the places."""
        given, asked = self.context.service_class, self.context.asked.service_class
        found = {"X-Roundhouse-Class": given.label}
        if asked is not None and asked < given:
            found["X-Roundhouse-Class-Asked"] = asked.label
        pools = [lease.pool for lease in self._leases if lease.pool]
        return {**found, "X-Roundhouse-Pool": pools[-1]} if pools else found

    def _waited(self) -> tuple[float, float, float]:
        queue = sum(lease.queued_seconds for lease in self._leases)
        load = min(queue, sum(lease.load_seconds for lease in self._leases))
        return queue, load, min(queue, sum(lease.swap_seconds for lease in self._leases))

    def sent(self) -> None:
        """The last event of its answer has left. What the engine counts may still come."""
        (self._into or self)._is_sent = True

    # --- its end ----------------------------------------------------------------------------------------------------
    def done(self) -> None:
        """It was answered; an answer with an error's status was a refusal."""
        status = self._status or 200
        self._end(End.DONE if status < 400 else End.REFUSED if status < 500 else End.FAILED, status)

    def left(self) -> None:
        """The client is gone; one that has all of its answer may leave at once, and OpenAI's SDK does."""
        if self._is_sent:
            self.done()
        else:
            self._end(End.CANCELLED, self._status)

    def failed(self, error: BaseException) -> None:
        """It ended with this."""
        if isinstance(error, NotYet):
            self._end(End.REFUSED, 202, "not_yet")
        elif isinstance(error, LEFT):
            self.left()
        elif isinstance(error, RoundhouseError):
            self._end(self._end_by(error), self._status or error.status, error.code)
        else:
            self._end(End.FAILED, self._status or 500, "internal_error")

    def _end_by(self, error: RoundhouseError) -> End:
        if isinstance(error, DeadlineExceeded):
            return End.DEADLINE
        if error.code == "engine_died":
            return End.ENGINE_DIED
        if error.code == "client_too_slow":
            return End.CANCELLED
        return End.REFUSED if error.status < 500 or (error.status == 503 and not self._leases) else End.FAILED

    def _end(self, end: End, status: int | None, code: str | None = None) -> None:
        if self._into is not None:
            self._into._end(end, status, code)
            return
        if self._ended:
            return
        self._ended = True
        record = self._record(end, status, code, self._began)
        for sink in self._sinks:
            try:
                sink.take(record)
            except Exception:  # a sink that breaks its word must not break the request
                log.exception("a sink failed", extra={"request_id": self.context.id})

    def _record(self, end: End, status: int | None, code: str | None, began: float) -> RequestRecord:
        seconds = {"receive": self._began - self.context.arrived, "total": self._clock() - began}
        if self._attempt_began > began:
            seconds["before"], seconds["away"] = self._attempt_began - began, self._away
        if self._leases:
            seconds["queue"], seconds["load"], seconds["swap"] = self._waited()
        if self._first is not None:
            seconds["first"] = self._first - began
        if self._device is not None and self._mark is not None:
            seconds["device"], seconds["cold"] = self._device.end(self._mark), self._cold
        usage = total(lease.usage for lease in self._leases)
        pairs = self.pairs if end is End.DONE else 0
        lease = self._leases[-1] if self._leases else None
        return RequestRecord(
            self.context, self.endpoint, self.target, end, status, code, usage, seconds, self.entry, self.admission,
            pairs, "" if lease is None else lease.pool, None if lease is None else lease.first_goal,
            self.texts,
        )  # fmt: skip
