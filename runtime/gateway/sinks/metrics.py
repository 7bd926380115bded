"""A sink of request records: counts them by model, endpoint and outcome."""

from collections.abc import Iterator

from runtime.gateway.metrics import Metrics
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.sinks.adapters import AdapterMetrics
from runtime.gateway.sinks.labels import FirstLabels
from runtime.gateway.sinks.limits import cost_of
from tenants.costs.prices import MILLION

CODES = 100
"""Of errors that have their own label: a provider's codes are its own."""
EXEMPLAR = 128
"""Letters of an exemplar, names and values together: OpenMetrics takes no more."""


class RequestMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._codes, self._outcomes, self._adapters = FirstLabels(CODES), FirstLabels(CODES), AdapterMetrics(metrics)

    def take(self, record: RequestRecord) -> None:
        metrics, target, seconds, usage = self._metrics, record.target, record.seconds, record.usage
        if record.code is not None and record.end is not End.DONE:
            model = "-" if target is None else target.model
            metrics.of(metrics.errors, model, self._codes.of(record.code)).inc()
        if target is None:  # labels come from recipes, never from a request
            return
        self._adapters.take(record)
        model = target.model
        metrics.of(metrics.requests, model, record.endpoint, self._outcomes.of(outcome(record))).inc()
        label = record.context.service_class.label
        metrics.of(metrics.total, model, label).observe(seconds["total"])
        metrics.of(metrics.class_requests, model, label, record.end.value).inc()
        if "queue" in seconds:
            metrics.of(metrics.queue, model).observe(seconds["queue"])
            metrics.of(metrics.class_queue, model, label).observe(seconds["queue"])
        for cause, spent in record.causes.items():
            metrics.spent(metrics.wait, spent, model, cause)
        if "first" in seconds:
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
        if cost := cost_of(record):
            metrics.of(metrics.cost, model).inc(cost / MILLION)


def exemplar(record: RequestRecord) -> Iterator[tuple[str, str]]:
    """Where to look a request up: its id, and its trace if that was sampled."""
    left, trace = EXEMPLAR, record.context.trace
    parent = trace.headers.get("traceparent", "") if trace else ""
    labels = {"request_id": record.context.id}
    if parent and int(parent[-2:], 16) & 1:
        labels = {"trace_id": parent[3:35], **labels}
    for name, value in labels.items():
        left -= len(name) + len(value)
        if left >= 0:
            yield name, value


def outcome(record: RequestRecord) -> str:
    """ok, cancelled, an HTTP status, or, where the status line had left already, the error's code."""
    if record.end is End.DONE:
        return "ok"
    if record.end is End.CANCELLED and record.code is None:
        return "cancelled"
    status = record.status or 500
    return str(status) if status >= 400 or status == 202 or record.code is None else record.code
