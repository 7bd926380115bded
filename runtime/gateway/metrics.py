"""Prometheus metrics. Labels are bounded: requests never create a new model label."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

Series = TypeVar("Series", bound=MetricWrapperBase)

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
_LOAD = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_RATIOS = (0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2, 4)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ADAPTER = ("model", "adapter")


disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, and nobody asks


class _Declared(Generic[Series]):
    """Declaration of a series in the class `Metrics`; each instance creates its own."""

    def __init__(self, kind: type[Series], name: str, text: str, labels: Sequence[str] = (), **options: Any) -> None:
        self._make = partial(kind, name, text, labels, **options)

    def make(self, registry: CollectorRegistry) -> Series:
        return self._make(registry=registry)

    def __get__(self, metrics: "Metrics", _owner: type) -> Series:
        """For type checkers only; at run time the instance's own series has the same name."""
        raise AttributeError


_counter, _gauge = partial(_Declared, Counter), partial(_Declared, Gauge)
_histogram, _summary = partial(_Declared, Histogram), partial(_Declared, Summary)


class Metrics:
    """All series of one server. docs/reference/metrics.md is generated from their help texts."""

    requests = _counter(
        "roundhouse_requests",
        "Requests by model, endpoint and outcome (ok, HTTP status, cancelled).",
        ["model", "endpoint", "outcome"],
    )
    queue = _histogram(
        "roundhouse_queue_seconds", "From arrival to the start in the engine.", ["model"], buckets=_LATENCY
    )
    wait = _counter(
        "roundhouse_wait_seconds",
        "Where the time of requests went, by cause: queue, load, swap (bringing the adapter), prefill (until the "
        "first byte), decode; provider: all of it that a provider took.",
        ["model", "cause"],
    )
    first = _histogram(
        "roundhouse_time_to_first_token_seconds",
        "From arrival to the first byte of the answer. Its exemplars name requests.",
        ["model", "class"],
        buckets=_LATENCY,
    )
    per_token = _histogram(
        "roundhouse_time_per_output_token_seconds",
        "Mean time between output tokens of a streamed answer.",
        ["model", "class"],
        buckets=_TOKEN,
    )
    total = _histogram(
        "roundhouse_request_seconds", "From arrival to the end of the answer.", ["model", "class"], buckets=_LATENCY
    )
    tokens = _counter(
        "roundhouse_tokens",
        "Tokens by model and kind (prompt, cached, completion), counted by the engine.",
        ["model", "kind"],
    )
    audio = _counter("roundhouse_audio_seconds", "Seconds of audio transcribed.", ["model"])
    batch = _histogram(
        "roundhouse_batch_size",
        "Inputs that shared an engine step (embed, rerank, speech).",
        ["model"],
        buckets=_SIZES,
    )
    errors = _counter(
        "roundhouse_errors",
        "Requests that were refused or failed, by the error's code; the 100 first codes, then `other`. Model `-`: "
        "refused before it was known who would answer.",
        ["model", "kind"],
    )
    cost = _counter("roundhouse_cost", "List price of what was answered, in the server's currency.", ["model"])
    judged = _counter(
        "roundhouse_judged_answers",
        "Answers that clients judged through /v1/feedback, by verdict (accepted, rejected).",
        ["model", "verdict"],
    )
    batch_forecast = _histogram(
        "roundhouse_batch_forecast_ratio",
        "Seconds that a forecast gave a batch until its end, over those that it took, by when it was made (creation; "
        "tenth: after a tenth of the lines). 1: right; below: it came later.",
        ["made"],
        buckets=_RATIOS,
    )
    line_seconds = _counter(
        "roundhouse_batch_line_seconds",
        "Seconds that lines of batches ran, all together, by what came of them (used; lost: a request of a higher "
        "class took the turn, and the line runs again).",
        ["model", "outcome"],
    )
    device_seconds = _counter(
        "roundhouse_device_seconds", "The machine's time that requests took, each its part.", ["model"]
    )
    team_first = _summary(
        "roundhouse_team_time_to_first_token_seconds",
        "From arrival to the first byte, by team and class.",
        ["team", "service_class"],
    )
    team_wait = _counter(
        "roundhouse_team_wait_seconds",
        "Where the time of a team's requests went, by cause as above.",
        ["team", "cause"],
    )
    team_requests = _counter(
        "roundhouse_team_requests",
        "Requests by team, class and outcome (ok, HTTP status, how it ended); the 200 first teams, then `other`.",
        ["team", "service_class", "outcome"],
    )
    team_tokens = _counter(
        "roundhouse_team_tokens",
        "Tokens by team, class and kind (prompt, cached, completion), of all attempts and routers' embeddings.",
        ["team", "service_class", "kind"],
    )
    team_cost = _counter(
        "roundhouse_team_cost", "List price of what teams used in all attempts, in the server's currency.", ["team"]
    )
    limits = _counter(
        "roundhouse_limited_requests",
        "Requests that found no room in a limit, by its team or key, kind and what was done: refused, warned, "
        "shadow (let in, and counted).",
        ["owner", "kind", "done"],
    )
    load = _histogram("roundhouse_load_seconds", "From the decision to load until ready.", ["model"], buckets=_LOAD)
    load_failures = _counter("roundhouse_load_failures", "Loads that failed.", ["model"])
    load_retries = _counter(
        "roundhouse_load_retries",
        "Loads that may have run out of memory and were tried again with the idle models gone; reasons as of deaths.",
        ["model", "reason"],
    )
    load_error = _gauge(
        "roundhouse_load_estimate_error_ratio",
        "Last load: (measured - planned) / planned, of seconds or bytes.",
        ["model", "of"],
    )
    cold = _counter("roundhouse_cold_starts", "Requests that had to wait for a load or a wake.", ["model"])
    evictions = _counter("roundhouse_evictions", "Models that left, by reason.", ["model", "reason"])
    sleep = _histogram(
        "roundhouse_sleep_seconds",
        "Models that were put to sleep, by reason: from the last request's end until their memory was back.",
        ["model", "reason"],
        buckets=_LOAD,
    )
    wake = _histogram(
        "roundhouse_wake_seconds",
        "From the decision to wake a sleeping model until ready.",
        ["model"],
        buckets=_LOAD,
    )
    sleep_failures = _counter(
        "roundhouse_sleep_failures", "Sleeps and wakes that failed, by step (sleep, wake).", ["model", "step"]
    )
    deaths = _counter(
        "roundhouse_engine_deaths",
        "Engines that died: killed, exited, out_of_memory, engine_hung, engine_failed or ended (not known how).",
        ["model", "reason"],
    )
    resident = _gauge(
        "roundhouse_resident_bytes",
        "Bytes that a model holds on the device and, beside a GPU, on the host.",
        ["model", "tier"],
    )
    budget = _gauge("roundhouse_budget_bytes", "Bytes that all models may hold together.")
    host_budget = _gauge("roundhouse_host_budget_bytes", "The same in host memory beside a GPU; 0 on a CPU.")
    storage_free = _gauge("roundhouse_storage_free_bytes", "Bytes free on the data directory's disk.")
    storage_reserve = _gauge(
        "roundhouse_storage_reserve_bytes", "Bytes of that disk that uploads leave to the ledger and the state."
    )
    ledger_journalled = _gauge(
        "roundhouse_ledger_journalled_rows",
        "Beginnings and ends of requests that wait for room on the ledger's disk, or for a fleet's database.",
    )
    certificate = _gauge(
        "roundhouse_fleet_certificate_seconds",
        "Seconds until this server's certificate for its fleet expires; 0 once it has.",
        ["server"],
    )
    degraded = _gauge(
        "roundhouse_degraded",
        "1 for each fault that the server has now: those of `degraded` in /health/ready.",
        ["fault"],
    )
    device_budget = _gauge("roundhouse_device_budget_bytes", "Bytes that models may hold there.", ["device"])
    device_resident = _gauge("roundhouse_device_resident_bytes", "Bytes that models hold there.", ["device"])
    device_used = _gauge(
        "roundhouse_device_memory_used_bytes",
        "Memory in use there by all programs: of the GPU; without one, of the machine.",
        ["device"],
    )
    device_total = _gauge("roundhouse_device_memory_total_bytes", "Memory that there is.", ["device"])
    device_busy = _gauge(
        "roundhouse_device_utilization_ratio",
        "How busy it is, 0 to 1: the GPU in its last sample; all cores of a CPU since the metrics were read last.",
        ["device"],
    )
    state = _gauge("roundhouse_model_state", "1 for the state that the model is in.", ["model", "state"])
    running = _gauge("roundhouse_running_requests", "Requests in the engine.", ["model"])
    waiting = _gauge("roundhouse_waiting_requests", "Requests that wait for a turn.", ["model"])
    class_requests = _counter(
        "roundhouse_class_requests",
        "Requests by service class (critical, interactive, batch) and end.",
        ["model", "class", "end"],
    )
    class_queue = _histogram(
        "roundhouse_class_queue_seconds",
        "From arrival to the start in the engine, by service class.",
        ["model", "class"],
        buckets=_LATENCY,
    )
    class_waiting = _gauge(
        "roundhouse_class_waiting_requests", "Requests that wait for a turn, by service class.", ["model", "class"]
    )
    predicted_wait = _gauge(
        "roundhouse_predicted_wait_seconds",
        "Until a request would start behind all that wait of its class and above; 0: at once, or nothing was "
        "measured yet.",
        ["model", "class"],
    )
    wait_goal = _gauge(
        "roundhouse_wait_goal_seconds", "Seconds that a request of the class may wait for its turn.", ["model", "class"]
    )
    waiting_work = _gauge(
        "roundhouse_waiting_work", "Work that waits for a turn, in prompt tokens that take as long.", ["model"]
    )
    arriving_work = _gauge(
        "roundhouse_arriving_work_per_second",
        "Work that arrives, a mean of about 30 s; refused work counts.",
        ["model"],
    )
    replica_work = _gauge(
        "roundhouse_replica_work_per_second",
        "Work that one replica does with all its turns taken; 0: nothing was measured yet.",
        ["model"],
    )
    kv_use = _gauge(
        "roundhouse_kv_cache_use_ratio", "Use of the model's fullest KV cache, 0 to 1, of chat models.", ["model"]
    )
    lead = _gauge("roundhouse_lead_seconds", "Expected seconds until one more replica would serve.", ["model"])
    needed_replicas = _gauge(
        "roundhouse_wanted_replicas",
        "Replicas that the model needs to meet the goals of its classes (docs/devices.md); autoscalers read it.",
        ["model"],
    )
    replicas = _gauge("roundhouse_ready_replicas", "Engines that serve the model now.", ["model"])
    pool_running = _gauge(
        "roundhouse_pool_running_requests", "Requests in the engine, by pool of the recipe.", ["model", "pool"]
    )
    pool_waiting = _gauge(
        "roundhouse_pool_waiting_requests",
        "Requests that wait for a turn, by pool of the recipe.",
        ["model", "pool"],
    )
    pool_first = _counter(
        "roundhouse_pool_first_token",
        "Answers of a pool with a goal (`ttft`) that began within it (met) or not.",
        ["model", "pool", "goal"],
    )
    restarts = _gauge("roundhouse_slot_restarts", "Slot processes that ended since the start.")
    adapter = _gauge(
        "roundhouse_adapter_tier",
        "1 for the tier that an adapter is in (device, host, disk). With more than 100 adapters: those in use, "
        "in memory or busiest, and the sums of the others as `other`.",
        ["model", "adapter", "tier"],
    )
    adapter_info = _gauge(
        "roundhouse_adapter_info",
        "1; the labels name the current version and its digest.",
        ["model", "adapter", "version", "digest"],
    )
    adapter_rank = _gauge("roundhouse_adapter_rank", "Rank of the current version.", ADAPTER)
    adapter_bytes = _gauge("roundhouse_adapter_bytes", "Bytes of the current version.", ADAPTER)
    adapter_pinned = _gauge("roundhouse_adapter_pinned", "1 for a pinned adapter.", ADAPTER)
    adapter_running = _gauge("roundhouse_adapter_running", "Requests that run with it.", ADAPTER)
    adapter_waiting = _gauge("roundhouse_adapter_waiting", "Requests that wait for it.", ADAPTER)
    adapter_hits = _gauge("roundhouse_adapter_hits", "Requests that found it in a place when they came.", ADAPTER)
    adapter_misses = _gauge(
        "roundhouse_adapter_misses", "Requests that did not find it in a place when they came.", ADAPTER
    )
    adapter_evictions = _gauge("roundhouse_adapter_evictions", "Times that it lost its place.", ADAPTER)
    adapter_last = _gauge(
        "roundhouse_adapter_last_load_seconds",
        "Its last way into a place, by step (stage, place).",
        ["model", "adapter", "step"],
    )
    adapter_requests = _counter(
        "roundhouse_adapter_requests", "Requests answered with an adapter; the 100 busiest, then `other`.", ADAPTER
    )
    adapter_first = _histogram(
        "roundhouse_adapter_time_to_first_token_seconds",
        "From arrival to the first byte, by adapter as above.",
        ADAPTER,
        buckets=_LATENCY,
    )
    adapter_tokens = _counter(
        "roundhouse_adapter_tokens", "Tokens by adapter as above and kind (prompt, completion).", [*ADAPTER, "kind"]
    )
    adapter_load = _histogram(
        "roundhouse_adapter_load_seconds",
        "Time to bring an adapter into a device place, by step (stage; place, with its probe; probe).",
        ["model", "step"],
        buckets=_LATENCY,
    )
    adapter_probes = _counter(
        "roundhouse_adapter_probes",
        "Probes of adapters asked, by outcome (passed, failed, error).",
        ["model", "outcome"],
    )
    provider_attempts = _counter(
        "roundhouse_provider_attempts",
        "Attempts at a provider's model by outcome (ok, left, refused, excess_usage, an error's code).",
        ["provider", "name", "outcome"],
    )
    provider_state = _gauge(
        "roundhouse_provider_breaker",
        "Breaker of a provider's model: 0 closed, 0.5 half-open, 1 open.",
        ["provider", "name"],
    )
    provider_running = _gauge("roundhouse_provider_running", "Requests under way at a provider.", ["provider"])

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._children = dict[tuple[MetricWrapperBase, tuple[str, ...]], Any]()
        for name, declared in vars(Metrics).items():
            if isinstance(declared, _Declared):
                setattr(self, name, declared.make(self.registry))
        self.of_adapters = (self.adapter_requests, self.adapter_first, self.adapter_tokens)

    def provider_attempt(self, provider: str, name: str, outcome: str) -> None:
        self.provider_attempts.labels(provider, name, outcome).inc()

    def count_line(self, model: str, seconds: float, is_lost: bool) -> None:
        """Count a finished run of a batch line. is_lost: a higher class took its turn, so it runs again."""
        self.of(self.line_seconds, model, "lost" if is_lost else "used").inc(seconds)

    def of(self, series: Series, *labels: str) -> Series:
        """Return the series with these labels, cached because `labels` is slow and called 20 times a request."""
        key = (series, labels)
        if (child := self._children.get(key)) is None:
            child = self._children[key] = series.labels(*labels)
        return child

    def spent(self, series: Counter, owner: str, causes: Mapping[str, float]) -> None:
        """Add seconds by cause. Creates the series of every cause, even for zero seconds."""
        children = self._children
        for cause, seconds in causes.items():
            child = children.get((series, (owner, cause))) or self.of(series, owner, cause)
            if seconds:
                child.inc(seconds)

    def forget(self, model: str) -> None:
        """Drop the series of a model that was removed."""
        for series in vars(self).values():
            if isinstance(series, MetricWrapperBase):
                with contextlib.suppress(ValueError):  # a series without a model label
                    self.drop(series, model=model)

    def drop(self, series: MetricWrapperBase, **labels: str) -> None:
        """Drop a series' values of these labels. Raises ValueError for unknown names."""
        series.remove_by_labels(labels)
        self._children.clear()  # a cached child of a dropped series would count unseen
