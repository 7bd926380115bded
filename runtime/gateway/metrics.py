"""Prometheus metrics. Labels are bounded: model ids come from recipes, never from a request."""

import contextlib
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

Series = TypeVar("Series", bound=MetricWrapperBase)

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
_LOAD = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, and nobody asks


class Metrics:
    """All series of one server. docs/reference/metrics.md is generated from their help texts."""

    def __init__(self) -> None:
        self._children = dict[tuple[MetricWrapperBase, tuple[str, ...]], Any]()
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram, summary = partial(Histogram, registry=self.registry), partial(Summary, registry=self.registry)
        self.requests = counter(
            "roundhouse_requests",
            "Requests by model, endpoint and outcome (ok, HTTP status, cancelled).",
            ["model", "endpoint", "outcome"],
        )
        self.queue = histogram(
            "roundhouse_queue_seconds", "From arrival to the start in the engine.", ["model"], buckets=_LATENCY
        )
        self.wait = counter(
            "roundhouse_wait_seconds",
            "Where the time of requests went, by cause: queue, load, swap (bringing the adapter), prefill (until the "
            "first byte), decode; provider: all of it that a provider took.",
            ["model", "cause"],
        )
        self.first = histogram(
            "roundhouse_time_to_first_token_seconds",
            "From arrival to the first byte of the answer. Its exemplars name requests.",
            ["model", "class"],
            buckets=_LATENCY,
        )
        self.per_token = histogram(
            "roundhouse_time_per_output_token_seconds",
            "Mean time between output tokens of a streamed answer.",
            ["model", "class"],
            buckets=_TOKEN,
        )
        self.total = histogram(
            "roundhouse_request_seconds", "From arrival to the end of the answer.", ["model", "class"], buckets=_LATENCY
        )
        self.tokens = counter(
            "roundhouse_tokens",
            "Tokens by model and kind (prompt, cached, completion), counted by the engine.",
            ["model", "kind"],
        )
        self.audio = counter("roundhouse_audio_seconds", "Seconds of audio transcribed.", ["model"])
        self.batch = histogram(
            "roundhouse_batch_size",
            "Inputs that shared an engine step (embed, rerank, speech).",
            ["model"],
            buckets=_SIZES,
        )
        self.errors = counter(
            "roundhouse_errors",
            "Requests that were refused or failed, by the error's code; the 100 first codes, then `other`. Model `-`: "
            "refused before it was known who would answer.",
            ["model", "kind"],
        )
        self.cost = counter("roundhouse_cost", "List price of what was answered, in the server's currency.", ["model"])
        self.judged = counter(
            "roundhouse_judged_answers",
            "Answers that clients judged through /v1/feedback, by verdict (accepted, rejected).",
            ["model", "verdict"],
        )
        self.device_seconds = counter(
            "roundhouse_device_seconds", "The machine's time that requests took, each its part.", ["model"]
        )
        self.team_first = summary(
            "roundhouse_team_time_to_first_token_seconds",
            "From arrival to the first byte, by team and class.",
            ["team", "service_class"],
        )
        self.team_wait = counter(
            "roundhouse_team_wait_seconds",
            "Where the time of a team's requests went, by cause as above.",
            ["team", "cause"],
        )
        self.team_requests = counter(
            "roundhouse_team_requests",
            "Requests by team, class and outcome (ok, HTTP status, how it ended); the 200 first teams, then `other`.",
            ["team", "service_class", "outcome"],
        )
        self.team_tokens = counter(
            "roundhouse_team_tokens",
            "Tokens by team, class and kind (prompt, cached, completion), of all attempts.",
            ["team", "service_class", "kind"],
        )
        self.team_cost = counter(
            "roundhouse_team_cost", "List price of what teams used in all attempts, in the server's currency.", ["team"]
        )
        self.limits = counter(
            "roundhouse_limited_requests",
            "Requests that found no room in a limit, by its team or key, kind and what was done: refused, warned, "
            "shadow (let in, and counted).",
            ["owner", "kind", "done"],
        )
        self.load = histogram(
            "roundhouse_load_seconds", "From the decision to load until ready.", ["model"], buckets=_LOAD
        )
        self.load_failures = counter("roundhouse_load_failures", "Loads that failed.", ["model"])
        self.load_retries = counter(
            "roundhouse_load_retries",
            "Loads that ran out of memory and were tried once more with the idle models gone; reasons as of deaths.",
            ["model", "reason"],
        )
        self.load_error = gauge(
            "roundhouse_load_estimate_error_ratio",
            "Last load: (measured - planned) / planned, of seconds or bytes.",
            ["model", "of"],
        )
        self.cold = counter("roundhouse_cold_starts", "Requests that had to wait for a load or a wake.", ["model"])
        self.evictions = counter("roundhouse_evictions", "Models that left, by reason.", ["model", "reason"])
        self.sleep = histogram(
            "roundhouse_sleep_seconds",
            "Models that were put to sleep, by reason: from the last request's end until their memory was back.",
            ["model", "reason"],
            buckets=_LOAD,
        )
        self.wake = histogram(
            "roundhouse_wake_seconds",
            "From the decision to wake a sleeping model until ready.",
            ["model"],
            buckets=_LOAD,
        )
        self.sleep_failures = counter(
            "roundhouse_sleep_failures", "Sleeps and wakes that failed, by step (sleep, wake).", ["model", "step"]
        )
        self.deaths = counter(
            "roundhouse_engine_deaths",
            "Engines that died: killed, exited, out_of_memory, engine_hung, engine_failed or ended (not known how).",
            ["model", "reason"],
        )
        self.resident = gauge(
            "roundhouse_resident_bytes",
            "Bytes that a model holds on the device and, beside a GPU, on the host.",
            ["model", "tier"],
        )
        self.budget = gauge("roundhouse_budget_bytes", "Bytes that all models may hold together.")
        self.host_budget = gauge("roundhouse_host_budget_bytes", "The same in host memory beside a GPU; 0 on a CPU.")
        self.device_used = gauge(
            "roundhouse_device_memory_used_bytes",
            "Memory in use there by all programs: of the GPU; without one, of the machine.",
            ["device"],
        )
        self.device_total = gauge("roundhouse_device_memory_total_bytes", "Memory that there is.", ["device"])
        self.device_busy = gauge(
            "roundhouse_device_utilization_ratio",
            "How busy it is, 0 to 1: the GPU in its last sample; all cores of a CPU since the metrics were read last.",
            ["device"],
        )
        self.state = gauge("roundhouse_model_state", "1 for the state that the model is in.", ["model", "state"])
        self.running = gauge("roundhouse_running_requests", "Requests in the engine.", ["model"])
        self.waiting = gauge("roundhouse_waiting_requests", "Requests that wait for a turn.", ["model"])
        self.class_requests = counter(
            "roundhouse_class_requests",
            "Requests by service class (critical, interactive, batch) and end.",
            ["model", "class", "end"],
        )
        self.class_queue = histogram(
            "roundhouse_class_queue_seconds",
            "From arrival to the start in the engine, by service class.",
            ["model", "class"],
            buckets=_LATENCY,
        )
        self.class_waiting = gauge(
            "roundhouse_class_waiting_requests", "Requests that wait for a turn, by service class.", ["model", "class"]
        )
        self.pool_running = gauge(
            "roundhouse_pool_running_requests", "Requests in the engine, by pool of the recipe.", ["model", "pool"]
        )
        self.pool_waiting = gauge(
            "roundhouse_pool_waiting_requests",
            "Requests that wait for a turn, by pool of the recipe.",
            ["model", "pool"],
        )
        self.pool_first = counter(
            "roundhouse_pool_first_token",
            "Answers of a pool with a goal (`ttft`) that began within it (met) or not.",
            ["model", "pool", "goal"],
        )
        self.restarts = gauge("roundhouse_slot_restarts", "Slot processes that ended since the start.")
        self.adapter = gauge(
            "roundhouse_adapter_tier",
            "1 for the tier that an adapter is in (device, host, disk). Of more than 100 those in use, in memory "
            "or busiest; of the rest the sums stand under `other`.",
            ["model", "adapter", "tier"],
        )
        self.adapter_info = gauge(
            "roundhouse_adapter_info",
            "1; the labels name the current version and its digest.",
            ["model", "adapter", "version", "digest"],
        )
        one = ["model", "adapter"]
        self.adapter_rank = gauge("roundhouse_adapter_rank", "Rank of the current version.", one)
        self.adapter_bytes = gauge("roundhouse_adapter_bytes", "Bytes of the current version.", one)
        self.adapter_pinned = gauge("roundhouse_adapter_pinned", "1 for a pinned adapter.", one)
        self.adapter_running = gauge("roundhouse_adapter_running", "Requests that run with it.", one)
        self.adapter_waiting = gauge("roundhouse_adapter_waiting", "Requests that wait for it.", one)
        self.adapter_hits = gauge("roundhouse_adapter_hits", "Requests that found it in a place when they came.", one)
        self.adapter_misses = gauge(
            "roundhouse_adapter_misses", "Requests that did not find it in a place when they came.", one
        )
        self.adapter_evictions = gauge("roundhouse_adapter_evictions", "Times that it lost its place.", one)
        self.adapter_last = gauge(
            "roundhouse_adapter_last_load_seconds",
            "Its last way into a place, by step (stage, place).",
            ["model", "adapter", "step"],
        )
        self.adapter_requests = counter(
            "roundhouse_adapter_requests", "Requests answered with an adapter; the 100 busiest, then `other`.", one
        )
        self.adapter_first = histogram(
            "roundhouse_adapter_time_to_first_token_seconds",
            "From arrival to the first byte, by adapter as above.",
            one,
            buckets=_LATENCY,
        )
        self.adapter_tokens = counter(
            "roundhouse_adapter_tokens", "Tokens by adapter as above and kind (prompt, completion).", [*one, "kind"]
        )
        self.of_adapters: tuple[MetricWrapperBase, ...] = (
            self.adapter_requests, self.adapter_first, self.adapter_tokens,
        )  # fmt: skip
        self.adapter_load = histogram(
            "roundhouse_adapter_load_seconds",
            "Time to bring an adapter into a device place, by step (stage; place, with its probe; probe).",
            ["model", "step"],
            buckets=_LATENCY,
        )
        self.adapter_probes = counter(
            "roundhouse_adapter_probes",
            "Probes of adapters asked, by outcome (passed, failed, error).",
            ["model", "outcome"],
        )
        self.provider_attempts = counter(
            "roundhouse_provider_attempts",
            "Attempts at a provider's model by outcome (ok, left, refused, excess_usage, an error's code).",
            ["provider", "name", "outcome"],
        )
        self.provider_state = gauge(
            "roundhouse_provider_breaker",
            "Breaker of a provider's model: 0 closed, 0.5 half-open, 1 open.",
            ["provider", "name"],
        )
        self.provider_running = gauge("roundhouse_provider_running", "Requests under way at a provider.", ["provider"])

    def provider_attempt(self, provider: str, name: str, outcome: str) -> None:
        self.provider_attempts.labels(provider, name, outcome).inc()

    def of(self, series: Series, *labels: str) -> Series:
        """The series of these labels, for what is counted with each request: `labels` joins, checks and locks anew each
        time, and a request has some twenty of them."""
        key = (series, labels)
        if (child := self._children.get(key)) is None:
            child = self._children[key] = series.labels(*labels)
        return child

    def spent(self, series: Counter, seconds: float, *labels: str) -> None:
        """Where time went: the series is there from the first request on, and most have no time to add to it."""
        child = self.of(series, *labels)
        if seconds:
            child.inc(seconds)

    def forget(self, model: str) -> None:
        """Drop the series of a model that was removed."""
        for series in vars(self).values():
            if isinstance(series, MetricWrapperBase):
                with contextlib.suppress(ValueError):  # it has no models
                    self.drop(series, model=model)

    def drop(self, series: MetricWrapperBase, **labels: str) -> None:
        """Drop what a series has of these labels. Raises ValueError for names that it does not have."""
        series.remove_by_labels(labels)
        self._children.clear()  # what is counted in one that was dropped is seen by nobody
