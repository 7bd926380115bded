"""Sinks for operators: counts by model, adapter and team, a log line per request, and the console's last requests.

Labels are bounded: a metric must not grow with what clients send or register.
"""

import logging
import time
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from console.history import RequestRoute, RequestRow
from console.state import Console
from runtime.gateway.metrics import Metrics
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.target import Target
from tenants.costs.prices import MILLION
from tenants.ledger.rows import BATCH
from tenants.limits.records import Limit

log = logging.getLogger("roundhouse.requests")
OTHER = "other"
"""Label for all names without their own label."""
AGE = 10_000
"""Number of requests after which earlier counts are halved."""
CODES = 100
"""Number of error codes with their own label. Providers may send any codes."""
MAX_ADAPTERS, MAX_TEAMS = 100, 200
EXEMPLAR = 128
"""Most characters of an exemplar's names and values, a bound set by OpenMetrics."""
WARNING_ENDS = frozenset({End.ENGINE_DIED, End.FAILED, End.DEADLINE})
Name = TypeVar("Name", bound=Hashable)


# --- labels ----------------------------------------------------------------------------------------------------------
class FirstLabels:
    """Labels for the first names; later ones share `other`."""

    def __init__(self, most: int) -> None:
        self._most, self._known = most, set[str]()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class BusiestLabels(Generic[Name]):
    """Labels for the busiest names. A name that is twice as busy as another one takes its label.

    A series that was dropped and returns starts at zero, as after a restart. `other` only grows.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = dict[Name, float]()
        self._own = set[Name]()
        self._seen = 0

    def count(self, name: Name) -> Name | None:
        """Count a name. Returns the name whose label it took, if any."""
        self._counts[name] = self._counts.get(name, 0.0) + 1.0
        self._seen += 1
        if self._seen >= AGE:
            self._seen = 0
            self._counts = {one: count / 2 for one, count in self._counts.items() if count >= 2 or one in self._own}
        if name in self._own:
            return None
        if len(self._own) < self._most:
            self._own.add(name)
            return None
        least = min(self._own, key=lambda one: self._counts.get(one, 0.0))
        if self._counts.get(name, 0.0) <= 2 * self._counts.get(least, 0.0):
            return None
        self._own.remove(least)
        self._own.add(name)
        return least

    def has(self, name: Name) -> bool:
        """Whether it has its own label."""
        return name in self._own


# --- sinks -----------------------------------------------------------------------------------------------------------
class AdapterMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._busiest = metrics, BusiestLabels[tuple[str, str]](MAX_ADAPTERS)

    def take(self, record: RequestRecord) -> None:
        target, seconds, usage = record.target, record.seconds, record.usage
        if target is None or target.adapter is None or "first" not in seconds:
            return
        metrics, labels = self._metrics, (target.model, target.adapter)
        replaced = self._busiest.count(labels)
        if replaced is not None:
            for series in metrics.of_adapters:
                metrics.drop(series, model=replaced[0], adapter=replaced[1])
        if not self._busiest.has(labels):
            labels = (target.model, OTHER)
        metrics.of(metrics.adapter_requests, *labels).inc()
        metrics.of(metrics.adapter_first, *labels).observe(seconds["first"])
        for kind, count in (("prompt", usage.prompt_tokens), ("completion", usage.completion_tokens)):
            if count:
                metrics.of(metrics.adapter_tokens, *labels, kind).inc(count)


class RequestMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._codes, self._outcomes, self._adapters = FirstLabels(CODES), FirstLabels(CODES), AdapterMetrics(metrics)

    def take(self, record: RequestRecord) -> None:
        metrics, target, seconds, usage = self._metrics, record.target, record.seconds, record.usage
        if record.code is not None and record.end is not End.DONE:
            model = "-" if target is None else target.model
            metrics.of(metrics.errors, model, self._codes.of(record.code)).inc()
        if target is None:  # label values come from recipes, never from a request
            return
        self._adapters.take(record)
        model = target.model
        metrics.of(metrics.requests, model, record.endpoint, self._outcomes.of(outcome(record))).inc()
        label = record.context.service_class.label
        metrics.of(metrics.total, model, label).observe(seconds["total"])
        is_line = record.context.source == BATCH  # latency alerts must not include batch lines
        if not is_line:
            metrics.of(metrics.class_requests, model, label, record.end.value).inc()
        if "queue" in seconds:
            metrics.of(metrics.queue, model).observe(seconds["queue"])
            metrics.of(metrics.class_queue, model, label).observe(seconds["queue"])
        metrics.spent(metrics.wait, model, record.causes)
        if "first" in seconds and not is_line:
            metrics.of(metrics.first, model, label).observe(seconds["first"], dict(exemplar(record)))
            if record.first_goal is not None:
                met = "met" if seconds["first"] <= record.first_goal else "missed"
                metrics.of(metrics.pool_first, model, record.pool, met).inc()
        for kind, count in record.tokens().items():
            metrics.of(metrics.tokens, model, kind).inc(count)
        if record.is_stream and usage.completion_tokens > 1 and "first" in seconds:
            decoding = seconds["total"] - seconds["first"]
            metrics.of(metrics.per_token, model, label).observe(decoding / (usage.completion_tokens - 1))
        if usage.audio_seconds:
            metrics.of(metrics.audio, model).inc(usage.audio_seconds)
        if usage.batch:
            metrics.of(metrics.batch, model).observe(usage.batch)
        if "device" in seconds:
            metrics.of(metrics.device_seconds, model).inc(seconds["device"])
        if record.cost:
            metrics.of(metrics.cost, model).inc(record.cost / MILLION)


def exemplar(record: RequestRecord) -> Iterator[tuple[str, str]]:
    """Yield a request's id, and its trace id if it was sampled."""
    left, parent = EXEMPLAR, _traceparent(record)
    labels = {"request_id": record.context.id}
    if parent and int(parent[-2:], 16) & 1:
        labels = {"trace_id": parent[3:35], **labels}
    for name, value in labels.items():
        left -= len(name) + len(value)
        if left >= 0:
            yield name, value


def _traceparent(record: RequestRecord) -> str:
    """Return the `traceparent` of a request's span; '' without traces."""
    return record.trace.headers.get("traceparent", "") if record.trace else ""


def outcome(record: RequestRecord) -> str:
    """Return ok, cancelled, an HTTP status, or the code of an error in mid-stream."""
    if record.end is End.DONE:
        return "ok"
    if record.end is End.CANCELLED and record.code is None:
        return "cancelled"
    status = record.status or 500
    return str(status) if status >= 400 or status == 202 or record.code is None else record.code


class TeamMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._teams = metrics, FirstLabels(MAX_TEAMS)

    def take(self, record: RequestRecord) -> None:
        metrics, context = self._metrics, record.context
        if record.target is None:
            return
        team, class_ = self._teams.of(context.caller.team), context.service_class.label
        metrics.of(metrics.team_requests, team, class_, _status(record)).inc()
        metrics.spent(metrics.team_wait, team, record.causes)
        if "first" in record.seconds and context.source != BATCH:
            metrics.of(metrics.team_first, team, class_).observe(record.seconds["first"])
        self.attempt(record)

    def attempt(self, record: RequestRecord) -> None:
        """Count an attempt's usage and cost. The request itself is counted at its end."""
        metrics, context = self._metrics, record.context
        team, class_ = self._teams.of(context.caller.team), context.service_class.label
        counts = record.tokens()
        if record.routing_tokens:
            counts["prompt"] = counts.get("prompt", 0) + record.routing_tokens
        for kind, count in counts.items():
            metrics.of(metrics.team_tokens, team, class_, kind).inc(count)
        if record.cost:
            metrics.of(metrics.team_cost, team).inc(record.cost / MILLION)


def _status(record: RequestRecord) -> str:
    """The outcome without error codes, which would be too many series per team."""
    word = outcome(record)
    return word if word in ("ok", "cancelled") or word.isdecimal() else record.end.value


class LimitMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._owners = metrics, FirstLabels(MAX_TEAMS)

    def count(self, limit: Limit, what: str) -> None:
        metrics = self._metrics
        metrics.of(metrics.limits, self._owners.of(limit.subject), limit.kind.value, what).inc()


class RequestLog:
    """Logs a line for each request except batch lines, whose results are in the batch."""

    def take(self, record: RequestRecord) -> None:
        if record.context.source == BATCH:
            return
        level = logging.WARNING if record.end in WARNING_ENDS else logging.INFO
        if not log.isEnabledFor(level):
            return
        target, usage, seconds = record.target, record.usage, record.seconds
        fields = {
            "request_id": record.context.id,
            "trace_id": _traceparent(record)[3:35] or None,
            "team": record.context.caller.team,
            "endpoint": record.endpoint,
            "model": target.model if target else None,
            "adapter": target.label if target else None,
            "end": record.end.value,
            "status": record.status,
            "code": record.code,
            "prompt_tokens": usage.prompt_tokens or None,
            "cached_tokens": usage.cached_tokens or None,
            "completion_tokens": usage.completion_tokens or None,
            "audio_seconds": round(usage.audio_seconds, 2) or None,
            "seconds": round(seconds["total"], 4),
            **{f"{name}_seconds": round(seconds[name], 4) for name in ("queue", "load", "first") if name in seconds},
        }
        log.log(level, "request ended", extra={name: value for name, value in fields.items() if value is not None})


class ConsoleSink:
    """Keeps the last requests, except batch lines, with transcripts for teams that store them."""

    def __init__(self, console: Console) -> None:
        self._history, self._texts = console.history, console.texts

    def take(self, record: RequestRecord) -> None:
        context, target, usage, seconds = record.context, record.target, record.usage, record.seconds
        if context.source == BATCH:  # thousands of batch lines would displace interactive requests
            return
        at = round(time.time(), 3)
        if record.transcript is not None:
            self._texts.add(context.caller.team, context.id, at, record.transcript)
        self._history.take(
            RequestRow(
                id=context.id,
                at=at,
                team=context.caller.team,
                endpoint=record.endpoint,
                asked=target.recorded_name if target else "",
                model=target.model if target else "",
                adapter=(target.adapter or "") if target else "",
                digest=target.version.digest if target and target.version else "",
                provider=target.provider if target else "",
                replica=record.replica,
                replica_reason=record.replica_reason or "",
                route=_route(target),
                service_class=context.service_class.label,
                source=context.source,
                end=record.end.value,
                status=record.status,
                code=record.code,
                causes=record.causes,
                total=seconds["total"],
                first=seconds.get("first"),
                is_stream=record.is_stream,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                audio_seconds=usage.audio_seconds,
                cached_tokens=usage.cached_tokens,
                failed_attempts=list(record.failed_attempts),
                warning=record.warning,
                limits=list(record.admission.warnings) if record.admission is not None else [],
                pool=record.pool,
                key=context.caller.key or "",
            )
        )


def _route(target: Target | None) -> RequestRoute | None:
    if target is None or target.routed is None:
        return None
    decision = target.routed.decision
    return RequestRoute(
        router=target.routed.router,
        target=decision.target,
        reason=decision.full_reason,
        score=decision.score,
        scores=dict(decision.scores),
        alternatives=list(decision.alternatives),
        saw=dict(decision.saw),
    )
