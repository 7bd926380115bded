"""What is counted of each adapter: of the busiest by their names, of all others together."""

from runtime.gateway.metrics import Metrics
from runtime.gateway.record import RequestRecord
from runtime.gateway.sinks.labels import OTHER, BusiestLabels

MAX_LABELS = 100


class AdapterMetrics:
    def __init__(self, metrics: Metrics, most: int = MAX_LABELS) -> None:
        self._metrics, self._busiest = metrics, BusiestLabels[tuple[str, str]](most)

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
