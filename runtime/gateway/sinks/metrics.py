"""A sink of request records: counts them by model, endpoint and outcome."""

from runtime.gateway.metrics import Metrics
from runtime.gateway.record import End, RequestRecord


class RequestMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def take(self, record: RequestRecord) -> None:
        target, seconds, usage = record.target, record.seconds, record.usage
        if target is None:  # labels come from recipes, never from a request
            return
        metrics, model = self._metrics, target.model
        metrics.requests.labels(model, record.endpoint, outcome(record)).inc()
        metrics.total.labels(model).observe(seconds["total"])
        label = record.context.service_class.label
        metrics.class_requests.labels(model, label, record.end.value).inc()
        if "queue" in seconds:
            metrics.queue.labels(model).observe(seconds["queue"])
            metrics.class_queue.labels(model, label).observe(seconds["queue"])
        for cause, spent in record.causes().items():
            metrics.wait.labels(model, cause).inc(spent)
        if "first" in seconds:
            metrics.first.labels(model).observe(seconds["first"])
            if record.first_goal is not None:
                met = "met" if seconds["first"] <= record.first_goal else "missed"
                metrics.pool_first.labels(model, record.pool, met).inc()
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            if count:
                metrics.tokens.labels(model, kind).inc(count)
        if usage.completion_tokens > 1 and "first" in seconds:
            decoding = seconds["total"] - seconds["first"]
            metrics.per_token.labels(model).observe(decoding / (usage.completion_tokens - 1))
        if usage.audio_seconds:
            metrics.audio.labels(model).inc(usage.audio_seconds)
        if usage.batch:
            metrics.batch.labels(model).observe(usage.batch)
        if target.adapter and "first" in seconds:
            metrics.adapter_requests.labels(model, target.adapter).inc()


def outcome(record: RequestRecord) -> str:
    """ok, cancelled, an HTTP status, or, where the status line had left already, the error's code."""
    if record.end is End.DONE:
        return "ok"
    if record.end is End.CANCELLED and record.code is None:
        return "cancelled"
    status = record.status or 500
    return str(status) if status >= 400 or status == 202 or record.code is None else record.code
