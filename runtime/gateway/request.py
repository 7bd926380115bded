"""One request under way: its calls, attempts, and one record.

`runtime.http.serving` writes `Request`; `Gateway` and its sinks write `Attempt` while they admit, lease and charge it.
All others only read them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from console.texts import Transcript
from models.messages import Usage
from models.tasks import Call
from registry.errors import DeadlineExceeded, RoundhouseError
from runtime.gateway.context import RequestContext, Trace
from runtime.gateway.names import ModelRef
from runtime.gateway.record import End, RequestRecord, Sink
from runtime.gateway.target import Lease, LoadPending, Target
from runtime.scheduling.admission import REVOKED
from tenants.costs.prices import DeviceTime
from tenants.ledger.rows import Entry
from tenants.limits.limiter import Admission

log = logging.getLogger("roundhouse.gateway")
DISCONNECTS = (asyncio.CancelledError, GeneratorExit)
"""Exceptions that signal a client's disconnect."""
Calls = Callable[[int | None], Sequence[Call]]
"""Returns a request's engine calls, given the target's context length if known."""


def limit_warning(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header that reports exceeded limits that only warn."""
    return {"X-Roundhouse-Limit-Warning": "; ".join(warnings)} if warnings else {}


@dataclass(frozen=True, slots=True)
class UploadedForm:
    """A form whose file has been written to disk."""

    fields: Mapping[str, Sequence[str]]
    file: Path
    name: str
    """The file name given by the client."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """The client's original message, for forwarding it unchanged to another server."""

    query: str
    body: bytes | UploadedForm


@dataclass(slots=True)
class Attempt:
    """One attempt to answer a request, at one target. Times are monotonic seconds."""

    began: float
    target: Target | None = None
    admission: Admission | None = None
    """The limits' reservation for it."""
    entry: Entry | None = None
    """The ledger's row for its beginning."""
    is_end_awaited: bool = False
    """Whether the ledger commits its end before the client gets the last part."""
    lease: Lease | None = None
    device_mark: float | None = None
    """Time when charging for this machine begins (`DeviceTime.begin`)."""
    pairs: int = 0
    """Pairs of query and document."""
    first: float | None = None
    """The time of the answer's first byte."""
    status: int | None = None
    is_stream: bool = False
    warning: str = ""
    """Fields that were left out of the request, as the answer's header gives them."""
    code: str | None = None
    """The error's code, if the engine itself refused the request."""
    is_relayed: bool = False
    """Whether another server answers and records the request."""

    @property
    def usage(self) -> Usage:
        return Usage() if self.lease is None else self.lease.usage

    def wait_times(self) -> tuple[float, float, float]:
        """Seconds in the queue, and the parts of them spent on a load and on an adapter."""
        if self.lease is None:
            return 0.0, 0.0, 0.0
        queued = self.lease.queued_seconds
        return queued, min(queued, self.lease.load_seconds), min(queued, self.lease.swap_seconds)


class Request:
    """A request under way, as a context manager: leaving the block ends it, unless its end was noted before.

    Only the first end counts: each sink then takes the one record.
    """

    def __init__(
        self,
        context: RequestContext,
        endpoint: str,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
        *,
        device: DeviceTime | None = None,
        trace: Trace | None = None,
        sinks_of_relayed: Sequence[Sink] = (),
    ) -> None:
        """trace: None if tracing is off. sinks_of_relayed: replaces `sinks` if another server answers."""
        self.context, self.endpoint, self.trace = context, endpoint, trace
        self.transcript: Transcript | None = None
        self.model_ref: ModelRef
        """Set by `understood`."""
        self.make_calls: Calls = lambda _: ()
        self.tried: list[str] = []
        """Models of the attempts before this one."""
        self.message: ClientMessage | None = None
        """None if the request did not come over HTTP, so it cannot be forwarded."""
        self.nodes: list[str] = []
        """Servers of the fleet to which it was forwarded."""
        self.routing_tokens = self.routing_cost = 0
        """Tokens and cost of the routing embedding, until an attempt's record takes them over."""
        self._sinks, self._sinks_of_relayed, self._clock, self._device = sinks, sinks_of_relayed, clock, device
        self._received = clock()
        self.attempt = Attempt(self._received)
        self._failures: list[str] = []
        self._was_leased, self._is_sent, self._has_ended = False, False, False
        self._provider_seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.done()
        else:
            self.failed(error)

    # --- what it is -------------------------------------------------------------------------------------------------
    @property
    def target(self) -> Target | None:
        return self.attempt.target

    @property
    def chosen(self) -> Target:
        """The target. Only for steps after the choice."""
        assert self.attempt.target is not None, "it has been chosen"
        return self.attempt.target

    @cached_property
    def calls(self) -> Sequence[Call]:
        """The calls regardless of context length, for admission, counting and routing."""
        return self.make_calls(None)

    def received(self) -> None:
        """Note that the body has arrived; time is measured from here."""
        self._received = self.attempt.began = self._clock()

    def understood(self, model_ref: ModelRef, calls: Calls) -> None:
        """Note the name and calls of the parsed body."""
        self.model_ref, self.make_calls = model_ref, calls

    def limit_time(self, seconds: float | None) -> None:
        """Set a deadline if the request has none."""
        if seconds is not None and self.context.deadline is None:
            self.context = replace(self.context, deadline=time.monotonic() + seconds)

    # --- attempts ---------------------------------------------------------------------------------------------------
    def fail_attempt(self, error: RoundhouseError) -> RequestRecord:
        """Begin another attempt and return the record of the failed one, for the ledger."""
        failed, target = self.attempt, self.target
        record = self._record(self._end_by(error), failed.status or error.status, error.code, failed.began)
        model = "-" if target is None else target.model
        self._failures.append(f"{model} {error.code}")
        self.tried.append(model)
        self.attempt = Attempt(self._clock(), target, failed.admission, pairs=failed.pairs)
        if target is not None and target.provider:
            self._provider_seconds += record.seconds["total"]
        return record

    def leased(self, lease: Lease) -> None:
        """Note that the attempt got its turn."""
        attempt = self.attempt
        attempt.lease, self._was_leased = lease, True
        if self._device is not None and lease.uses_device and not self._has_ended:
            attempt.device_mark = self._device.begin()
        revision = lease.revision  # the model's revision may have changed while the request waited
        if attempt.target is not None and revision is not None and revision != attempt.target.revision:
            attempt.target = replace(attempt.target, revision=revision)
            if attempt.entry is not None:
                attempt.entry = replace(attempt.entry, revision=revision)

    def answered(self, status: int, *, is_stream: bool = False, warning: str = "", code: str | None = None) -> None:
        """Note the answer's first byte."""
        attempt = self.attempt
        if attempt.first is None:
            attempt.first, attempt.status, attempt.is_stream = self._clock(), status, is_stream
            attempt.warning, attempt.code = warning, code

    def relayed(self, status: int, *, is_stream: bool) -> None:
        """Note that another server answers and records the request."""
        self.answered(status, is_stream=is_stream)
        self.attempt.is_relayed = True

    def sent(self) -> None:
        """Note that the last event was sent. The engine's usage figures may still follow."""
        self._is_sent = True

    # --- the answer's head ------------------------------------------------------------------------------------------
    def headers(self) -> dict[str, str]:
        """Headers that name the answering model and show the time spent so far."""
        attempt, target = self.attempt, self.target
        headers = {} if target is None else {**target.headers(), **self._class_headers()}
        if self._failures:
            headers["X-Roundhouse-Failed-Attempts"] = ", ".join(self._failures)
        queue, load, swap = attempt.wait_times()
        first = (attempt.first or self._clock()) - self._received
        headers |= self.warnings()
        headers["Server-Timing"] = (
            f"queue;dur={queue * 1e3:.2f}, load;dur={load * 1e3:.2f}, swap;dur={swap * 1e3:.2f}, "
            f"first;dur={first * 1e3:.2f}"
        )
        return headers

    def warnings(self) -> dict[str, str]:
        """The header that reports exceeded limits that only warn."""
        return limit_warning(() if self.attempt.admission is None else self.attempt.admission.warnings)

    def _class_headers(self) -> dict[str, str]:
        """Headers for the request's class, a higher requested class, its pool and its replica."""
        granted, requested = self.context.service_class, self.context.hints.service_class
        headers = {"X-Roundhouse-Class": granted.label}
        if requested is not None and requested < granted:
            headers["X-Roundhouse-Class-Asked"] = requested.label
        if (lease := self.attempt.lease) is not None:
            if lease.pool:
                headers["X-Roundhouse-Pool"] = lease.pool
            if lease.replica:
                headers["X-Roundhouse-Replica"] = f"{lease.replica} {lease.replica_reason}"
        return headers

    # --- its end ----------------------------------------------------------------------------------------------------
    def done(self) -> None:
        """Note a complete answer. An error status counts as a refusal."""
        status = self.attempt.status or 200
        self._end(End.DONE if status < 400 else End.REFUSED if status < 500 else End.FAILED, status, self.attempt.code)

    def client_disconnected(self) -> None:
        """Note a disconnect. The answer may be complete, since OpenAI's SDK closes as soon as it is."""
        if self._is_sent:
            self.done()
        else:
            self._end(End.CANCELLED, self.attempt.status)

    def failed(self, error: BaseException, status: int | None = None) -> None:
        """Note that it ended with this error. status: sent to the client, if not the error's own."""
        status = self.attempt.status or status
        if isinstance(error, LoadPending):
            self._end(End.REFUSED, 202, "not_yet")
        elif isinstance(error, DISCONNECTS):
            self.client_disconnected()
        elif isinstance(error, RoundhouseError):
            self._end(self._end_by(error), status or error.status, error.code)
        else:
            self._end(End.FAILED, status or 500, "internal_error")

    def _end_by(self, error: RoundhouseError) -> End:
        if isinstance(error, DeadlineExceeded):
            return End.DEADLINE
        if error.code == "engine_died":
            return End.ENGINE_DIED
        if error.code in ("client_too_slow", REVOKED):
            return End.CANCELLED
        return End.REFUSED if error.status < 500 or (error.status == 503 and not self._was_leased) else End.FAILED

    def _end(self, end: End, status: int | None, code: str | None = None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        record = self._record(end, status, code, self._received)
        for sink in self._sinks_of_relayed if self.attempt.is_relayed else self._sinks:
            try:
                sink.take(record)
            except Exception:  # a faulty sink must not break the request
                log.exception("a sink failed", extra={"request_id": self.context.id})

    def _record(self, end: End, status: int | None, code: str | None, began: float) -> RequestRecord:
        attempt, lease = self.attempt, self.attempt.lease
        seconds = {"receive": self._received - self.context.arrived, "total": self._clock() - began}
        if attempt.began > began:
            seconds["before"], seconds["away"] = attempt.began - began, self._provider_seconds
        if lease is not None:
            seconds["queue"], seconds["load"], seconds["swap"] = attempt.wait_times()
        if attempt.first is not None:
            seconds["first"] = attempt.first - began
        if self._device is not None and attempt.device_mark is not None:
            seconds["device"] = self._device.end(attempt.device_mark)
            seconds["cold"] = lease.load_seconds if lease is not None and lease.is_cold else 0.0
        usage = attempt.usage  # read before `flag`, which this may set
        if end is End.ENGINE_DIED and attempt.status is None:
            usage = Usage()  # the client got nothing and must ask again; a slot that is killed cannot count, either
        if code is None and end is End.DONE and lease is not None:
            code = lease.flag
        routing_tokens, routing_cost = self.routing_tokens, self.routing_cost
        self.routing_tokens = self.routing_cost = 0  # they count for one attempt only
        return RequestRecord(
            context=self.context,
            endpoint=self.endpoint,
            target=attempt.target,
            end=end,
            status=status,
            code=code,
            usage=usage,
            seconds=seconds,
            attempt=len(self.tried) + 1,
            entry=attempt.entry,
            admission=attempt.admission,
            pairs=attempt.pairs if end is End.DONE else 0,
            routing_tokens=routing_tokens,
            routing_cost=routing_cost,
            pool="" if lease is None else lease.pool,
            replica=0 if lease is None else lease.replica,
            replica_reason=None if lease is None else lease.replica_reason,
            first_goal=None if lease is None else lease.first_goal,
            is_stream=attempt.is_stream,
            warning=attempt.warning,
            failed_attempts=tuple(self._failures),
            transcript=None if attempt.is_relayed else self.transcript,
            trace=self.trace,
        )
