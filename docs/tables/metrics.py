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
    "vLLM's own series, with our adapter names, so that dashboards for it keep working. Its value is the time.",
)

VLLM = (
    code("vllm:*"),
    "",
    "`model_name`, `engine`",
    "The metrics of each chat model's vLLM, see [vLLM's own series](../monitor.md#vllms-own-series).",
)


def metrics() -> str:
    """Return series, type, labels and meaning."""
    rows = []
    for name, metric in series():
        kind_ = next(word for word, of in _KINDS.items() if isinstance(metric, of))
        labels = ", ".join(code(label) for label in metric._labelnames)
        rows.append((code(name), kind_, labels, metric._documentation))
    return table(("series", "type", "labels", "meaning"), [*rows, LORA_INFO, VLLM])


def series() -> Iterator[tuple[str, MetricWrapperBase]]:
    """Yield the server's own metrics with their names in Prometheus."""
    for value in vars(Metrics()).values():
        if isinstance(value, MetricWrapperBase):
            yield value._name + ("_total" if isinstance(value, Counter) else ""), value


_KINDS: dict[str, type] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram, "summary": Summary}
