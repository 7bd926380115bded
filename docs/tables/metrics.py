"""Metrics of the server."""

from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram, Summary
from prometheus_client.metrics import MetricWrapperBase

from docs.tables.markdown import code, table
from runtime.gateway.metrics import Metrics

LORA_INFO = (
    code("vllm:lora_requests_info"),
    "gauge",
    "`max_lora`, `running_lora_adapters`, `waiting_lora_adapters`",
    "vLLM's own series, by our adapter names, so that dashboards made for it go on working. Its value is the time.",
)

VLLM = (
    code("vllm:*"),
    "",
    "`model_name`, `engine`",
    "What each chat model's vLLM counts by itself, see [vLLM's own series](../monitor.md#vllms-own-series).",
)


def metrics() -> str:
    """Series, type, labels, meaning."""
    rows = []
    for name, metric in series():
        kind_ = next(word for word, of in _KINDS.items() if isinstance(metric, of))
        labels = ", ".join(code(label) for label in metric._labelnames)
        rows.append((code(name), kind_, labels, metric._documentation))
    return table(("series", "type", "labels", "meaning"), [*rows, LORA_INFO, VLLM])


def series() -> Iterator[tuple[str, MetricWrapperBase]]:
    """The server's own, by the names that Prometheus sees."""
    for value in vars(Metrics()).values():
        if isinstance(value, MetricWrapperBase):
            yield value._name + ("_total" if isinstance(value, Counter) else ""), value


_KINDS: dict[str, type] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram, "summary": Summary}
