"""A request under way, until it has its record (`runtime.gateway.record`, where the table of ends is)."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from console.texts import Transcript
from registry.errors import DeadlineExceeded, RoundhouseError
from runtime.gateway.backend import LOCAL, Lease, LoadPending, Target, total
from runtime.gateway.context import RequestContext
from runtime.gateway.record import End, RequestRecord, Sink
from tenants.costs.device import DeviceTime
from tenants.ledger.attempts import HEDGED
from tenants.ledger.rows import Entry
from tenants.limits.limiter import Admission

log = logging.getLogger("roundhouse.gateway")
DISCONNECTS = (asyncio.CancelledError, GeneratorExit)
"""What a client's leaving looks like from inside."""


class Recorder:
    """Notes what a request's record will hold. Only the first end counts."""

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
        self.texts: Transcript | None = None
        self._device, self._cold = device, 0.0
        self._mark: float | None = None
        self._sinks, self._clock = sinks, clock
        self._began = clock()
        self._leases: list[Lease] = []
        self._was_leased = False
        self._first: float | None = None
        self._status: int | None = None
        self._is_stream = False
        self._ended, self._is_sent = False, False
        self._attempt_began = self._began
        self._failures: list[str] = []
        self._parent: Recorder | None = None
        self._provider_seconds = 0.0

    def received(self) -> None:
        """Its body is there: from here on the time is ours."""
        self._began = self._attempt_began = self._clock()

    def set_timeout(self, seconds: float) -> None:
        """It has a deadline now."""
        self.context = replace(self.context, deadline=time.monotonic() + seconds)

    def attempt_failed(self, error: RoundhouseError) -> RequestRecord:
        """Another attempt follows. The record of this one, for the ledger: the request's own comes at its end."""
        code, model = error.code, self.target.model if self.target else "-"
        record = self._record(self._end_by(error), self._status or error.status, code, self._attempt_began)
        self._failures.append(f"{model} {code}")
        self.context = replace(self.context, tried=(*self.context.tried, model))
        self.entry, self._leases, self._first, self._status = None, [], None, None
        self._mark, self._cold = None, 0.0
        self._attempt_began = self._clock()
        if self.target is not None and self.target.backend != LOCAL:
            self._provider_seconds += record.seconds["total"]
        return record

    # --- two attempts at a time -------------------------------------------------------------------------------------
    def fork(self, target: Target) -> "Recorder":
        """A second attempt beside this one. It has no record of its own: see `take_over` and `superseded`."""
        model = self.target.model if self.target else "-"
        context = replace(self.context, tried=(*self.context.tried, model))
        other = Recorder(context, self.endpoint, (), self._clock, self._device)
        other.target, other._began = target, self._began
        other.admission = None if self.admission is None else self.admission.another()
        other._failures = [*self._failures, f"{model} hedged"]
        other._parent = self
        return other

    @property
    def is_fork(self) -> bool:
        """It is of a second attempt: which of the two counts is not known before it has begun."""
        return self._parent is not None

    @property
    def is_over(self) -> bool:
        return self._ended

    def take_over(self, other: "Recorder") -> None:
        """The second attempt is the one that counts from now on."""
        for name in (
            "context", "target", "entry", "admission", "pairs", "_leases", "_was_leased", "_first", "_status", "_mark",
            "_cold", "_failures", "_attempt_began", "_is_stream",
        ):  # fmt: skip
            setattr(self, name, getattr(other, name))

    def superseded(self) -> RequestRecord:
        """The other attempt was first: the record of this one, for the ledger."""
        return self._record(End.CANCELLED, self._status, HEDGED, self._attempt_began)

    def leased(self, lease: Lease, *, is_cold: bool = False) -> None:
        """It has its turn. is_cold: it caused the load that it waited for."""
        self._leases.append(lease)
        self._was_leased = True
        self._cold += lease.load_seconds if is_cold else 0.0
        is_here = self.target is None or self.target.backend == LOCAL
        if self._device is not None and is_here and self._mark is None and not self._ended:
            self._mark = self._device.begin()

    def set_revision(self, revision: str) -> None:
        """What the engine holds that has given it its turn."""
        if self.target is not None and self.target.revision != revision:
            self.target = replace(self.target, revision=revision)
            if self.entry is not None:
                self.entry = replace(self.entry, revision=revision)

    def answered(self, status: int, *, is_stream: bool = False) -> None:
        """The answer's first byte is there."""
        if self._first is None:
            self._first, self._status, self._is_stream = self._clock(), status, is_stream

    def headers(self) -> dict[str, str]:
        """Who answers, and where the time went until now, for the answer's head."""
        target = {} if self.target is None else {**self.target.headers(), **self._order()}
        queue, load, swap = self._wait_times()
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
        granted, hints = self.context.service_class, self.context.hints.service_class
        headers = {"X-Roundhouse-Class": granted.label}
        if hints is not None and hints < granted:
            headers["X-Roundhouse-Class-Asked"] = hints.label
        pools = [lease.pool for lease in self._leases if lease.pool]
        return {**headers, "X-Roundhouse-Pool": pools[-1]} if pools else headers

    def _wait_times(self) -> tuple[float, float, float]:
        queue = load = swap = 0.0
        for lease in self._leases:
            queue += lease.queued_seconds
            load += lease.load_seconds
            swap += lease.swap_seconds
        return queue, min(queue, load), min(queue, swap)

    def sent(self) -> None:
        """The last event of its answer has left. What the engine counts may still come."""
        (self._parent or self)._is_sent = True

    # --- its end ----------------------------------------------------------------------------------------------------
    def done(self) -> None:
        """It was answered; an answer with an error's status was a refusal."""
        status = self._status or 200
        self._end(End.DONE if status < 400 else End.REFUSED if status < 500 else End.FAILED, status)

    def client_disconnected(self) -> None:
        """The client is gone; one that has all of its answer may leave at once, and OpenAI's SDK does."""
        if self._is_sent:
            self.done()
        else:
            self._end(End.CANCELLED, self._status)

    def failed(self, error: BaseException) -> None:
        """It ended with this."""
        if isinstance(error, LoadPending):
            self._end(End.REFUSED, 202, "not_yet")
        elif isinstance(error, DISCONNECTS):
            self.client_disconnected()
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
        return End.REFUSED if error.status < 500 or (error.status == 503 and not self._was_leased) else End.FAILED

    def _end(self, end: End, status: int | None, code: str | None = None) -> None:
        if self._parent is not None:
            self._parent._end(end, status, code)
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
            seconds["before"], seconds["away"] = self._attempt_began - began, self._provider_seconds
        if self._leases:
            seconds["queue"], seconds["load"], seconds["swap"] = self._wait_times()
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
            self.texts, self._is_stream,
        )  # fmt: skip
