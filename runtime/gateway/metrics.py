"""Prometheus metrics. Labels are bounded: model ids come from recipes, never from a request."""

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
_LOAD = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, and nobody asks


class Metrics:
    """All series of one server. Each is documented by its help text, which docs/operations.md is generated from."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.requests = Counter(
            "roundhouse_requests", "Requests by model, endpoint and outcome (ok, HTTP status, cancelled).",
            ["model", "endpoint", "outcome"], registry=r,
        )  # fmt: skip
        self.queue = Histogram(
            "roundhouse_queue_seconds",
            "From arrival to the start in the engine.",
            ["model"],
            buckets=_LATENCY,
            registry=r,
        )
        self.wait = Counter(
            "roundhouse_wait_seconds",
            "Where the time of requests went, by cause: queue, load, swap (bringing the adapter), prefill (until the "
            "first byte), decode; provider: all of it that a provider took.",
            ["model", "cause"], registry=r,
        )  # fmt: skip
        self.first = Histogram(
            "roundhouse_time_to_first_token_seconds",
            "From arrival to the first byte of the answer. Its exemplars name requests.",
            ["model", "class"], buckets=_LATENCY, registry=r,
        )  # fmt: skip
        self.per_token = Histogram(
            "roundhouse_time_per_output_token_seconds", "Mean time between output tokens of a streamed answer.",
            ["model", "class"], buckets=_TOKEN, registry=r,
        )  # fmt: skip
        self.total = Histogram(
            "roundhouse_request_seconds",
            "From arrival to the end of the answer.",
            ["model", "class"],
            buckets=_LATENCY,
            registry=r,
        )
        self.tokens = Counter(
            "roundhouse_tokens", "Tokens by model and kind (prompt, cached, completion), counted by the engine.",
            ["model", "kind"], registry=r,
        )  # fmt: skip
        self.audio = Counter("roundhouse_audio_seconds", "Seconds of audio transcribed.", ["model"], registry=r)
        self.batch = Histogram(
            "roundhouse_batch_size", "Inputs that shared an engine step (embed, rerank, speech).",
            ["model"], buckets=_SIZES, registry=r,
        )  # fmt: skip
        self.errors = Counter(
            "roundhouse_errors",
            "Requests that were refused or failed, by the error's code; the 100 first codes, then `other`. Model `-`: "
            "refused before it was known who would answer.",
            ["model", "kind"], registry=r,
        )  # fmt: skip
        self.cost = Counter(
            "roundhouse_cost", "List price of what was answered, in the server's currency.", ["model"], registry=r
        )
        self.judged = Counter(
            "roundhouse_judged_answers",
            "Answers that clients judged through /v1/feedback, by verdict (accepted, rejected).",
            ["model", "verdict"], registry=r,
        )  # fmt: skip
        self.device_seconds = Counter(
            "roundhouse_device_seconds", "The machine's time that requests took, each its part.", ["model"], registry=r
        )
        self.team_first = Summary(
            "roundhouse_team_time_to_first_token_seconds", "From arrival to the first byte, by team and class.",
            ["team", "service_class"], registry=r,
        )  # fmt: skip
        self.team_wait = Counter(
            "roundhouse_team_wait_seconds", "Where the time of a team's requests went, by cause as above.",
            ["team", "cause"], registry=r,
        )  # fmt: skip
        self.team_requests = Counter(
            "roundhouse_team_requests",
            "Requests by team, class and outcome (ok, HTTP status, how it ended); the 200 first teams, then `other`.",
            ["team", "service_class", "outcome"], registry=r,
        )  # fmt: skip
        self.team_tokens = Counter(
            "roundhouse_team_tokens", "Tokens by team, class and kind (prompt, cached, completion), of all attempts.",
            ["team", "service_class", "kind"], registry=r,
        )  # fmt: skip
        self.team_cost = Counter(
            "roundhouse_team_cost",
            "List price of what teams used in all attempts, in the server's currency.",
            ["team"],
            registry=r,
        )
        self.limits = Counter(
            "roundhouse_limited_requests",
            "Requests that found no room in a limit, by its team or key, kind and what was done: refused, warned, "
            "shadow (let in, and counted).",
            ["owner", "kind", "done"], registry=r,
        )  # fmt: skip
        self.load = Histogram(
            "roundhouse_load_seconds", "From the decision to load until ready.", ["model"], buckets=_LOAD, registry=r
        )
        self.load_failures = Counter("roundhouse_load_failures", "Loads that failed.", ["model"], registry=r)
        self.load_retries = Counter(
            "roundhouse_load_retries",
            "Loads that ran out of memory and were tried once more with the idle models gone; reasons as of deaths.",
            ["model", "reason"], registry=r,
        )  # fmt: skip
        self.load_error = Gauge(
            "roundhouse_load_estimate_error_ratio", "Last load: (measured - planned) / planned, of seconds or bytes.",
            ["model", "of"], registry=r,
        )  # fmt: skip
        self.cold = Counter(
            "roundhouse_cold_starts", "Requests that had to wait for a load or a wake.", ["model"], registry=r
        )
        self.evictions = Counter(
            "roundhouse_evictions", "Models that left, by reason.", ["model", "reason"], registry=r
        )
        self.sleep = Histogram(
            "roundhouse_sleep_seconds",
            "Models that were put to sleep, by reason: from the last request's end until their memory was back.",
            ["model", "reason"], buckets=_LOAD, registry=r,
        )  # fmt: skip
        self.wake = Histogram(
            "roundhouse_wake_seconds", "From the decision to wake a sleeping model until ready.",
            ["model"], buckets=_LOAD, registry=r,
        )  # fmt: skip
        self.sleep_failures = Counter(
            "roundhouse_sleep_failures", "Sleeps and wakes that failed, by step (sleep, wake).", ["model", "step"],
            registry=r,
        )  # fmt: skip
        self.deaths = Counter(
            "roundhouse_engine_deaths",
            "Engines that died: killed, exited, out_of_memory, engine_hung, engine_failed or ended (not known how).",
            ["model", "reason"], registry=r,
        )  # fmt: skip
        self.resident = Gauge(
            "roundhouse_resident_bytes",
            "Bytes that a model holds on the device and, beside a GPU, on the host.",
            ["model", "tier"],
            registry=r,
        )
        self.budget = Gauge("roundhouse_budget_bytes", "Bytes that all models may hold together.", registry=r)
        self.host_budget = Gauge(
            "roundhouse_host_budget_bytes", "The same in host memory beside a GPU; 0 on a CPU.", registry=r
        )
        self.device_used = Gauge(
            "roundhouse_device_memory_used_bytes",
            "Memory in use there by all programs: of the GPU; without one, of the machine.",
            ["device"], registry=r,
        )  # fmt: skip
        self.device_total = Gauge(
            "roundhouse_device_memory_total_bytes", "Memory that there is.", ["device"], registry=r
        )
        self.device_busy = Gauge(
            "roundhouse_device_utilization_ratio",
            "How busy it is, 0 to 1: the GPU in its last sample; all cores of a CPU since the metrics were read last.",
            ["device"], registry=r,
        )  # fmt: skip
        self.state = Gauge(
            "roundhouse_model_state", "1 for the state that the model is in.", ["model", "state"], registry=r
        )
        self.running = Gauge("roundhouse_running_requests", "Requests in the engine.", ["model"], registry=r)
        self.waiting = Gauge("roundhouse_waiting_requests", "Requests that wait for a turn.", ["model"], registry=r)
        self.class_requests = Counter(
            "roundhouse_class_requests", "Requests by service class (critical, interactive, batch) and end.",
            ["model", "class", "end"], registry=r,
        )  # fmt: skip
        self.class_queue = Histogram(
            "roundhouse_class_queue_seconds", "From arrival to the start in the engine, by service class.",
            ["model", "class"], buckets=_LATENCY, registry=r,
        )  # fmt: skip
        self.class_waiting = Gauge(
            "roundhouse_class_waiting_requests", "Requests that wait for a turn, by service class.",
            ["model", "class"], registry=r,
        )  # fmt: skip
        self.pool_running = Gauge(
            "roundhouse_pool_running_requests", "Requests in the engine, by pool of the recipe.",
            ["model", "pool"], registry=r,
        )  # fmt: skip
        self.pool_waiting = Gauge(
            "roundhouse_pool_waiting_requests", "Requests that wait for a turn, by pool of the recipe.",
            ["model", "pool"], registry=r,
        )  # fmt: skip
        self.pool_first = Counter(
            "roundhouse_pool_first_token", "Answers of a pool with a goal (`ttft`) that began within it (met) or not.",
            ["model", "pool", "goal"], registry=r,
        )  # fmt: skip
        self.restarts = Gauge("roundhouse_slot_restarts", "Slot processes that ended since the start.", registry=r)
        self.adapter = Gauge(
            "roundhouse_adapter_tier",
            "1 for the tier that an adapter is in (device, host, disk). Of more than 100 those in use, in memory "
            "or busiest; of the rest the sums stand under `other`.",
            ["model", "adapter", "tier"], registry=r,
        )  # fmt: skip
        self.adapter_info = Gauge(
            "roundhouse_adapter_info", "1; the labels name the current version and its digest.",
            ["model", "adapter", "version", "digest"], registry=r,
        )  # fmt: skip
        one = ["model", "adapter"]
        self.adapter_rank = Gauge("roundhouse_adapter_rank", "Rank of the current version.", one, registry=r)
        self.adapter_bytes = Gauge("roundhouse_adapter_bytes", "Bytes of the current version.", one, registry=r)
        self.adapter_pinned = Gauge("roundhouse_adapter_pinned", "1 for a pinned adapter.", one, registry=r)
        self.adapter_running = Gauge("roundhouse_adapter_running", "Requests that run with it.", one, registry=r)
        self.adapter_waiting = Gauge("roundhouse_adapter_waiting", "Requests that wait for it.", one, registry=r)
        self.adapter_hits = Gauge(
            "roundhouse_adapter_hits", "Requests that found it in a place when they came.", one, registry=r
        )
        self.adapter_misses = Gauge(
            "roundhouse_adapter_misses", "Requests that did not find it in a place when they came.", one, registry=r
        )
        self.adapter_evictions = Gauge("roundhouse_adapter_evictions", "Times that it lost its place.", one, registry=r)
        self.adapter_last = Gauge(
            "roundhouse_adapter_last_load_seconds", "Its last way into a place, by step (stage, place).",
            ["model", "adapter", "step"], registry=r,
        )  # fmt: skip
        self.adapter_requests = Counter(
            "roundhouse_adapter_requests", "Requests answered with an adapter; the 100 busiest, then `other`.",
            one, registry=r,
        )  # fmt: skip
        self.adapter_first = Histogram(
            "roundhouse_adapter_time_to_first_token_seconds", "From arrival to the first byte, by adapter as above.",
            one, buckets=_LATENCY, registry=r,
        )  # fmt: skip
        self.adapter_tokens = Counter(
            "roundhouse_adapter_tokens", "Tokens by adapter as above and kind (prompt, completion).",
            [*one, "kind"], registry=r,
        )  # fmt: skip
        self.of_adapters: tuple[MetricWrapperBase, ...] = (
            self.adapter_requests, self.adapter_first, self.adapter_tokens,
        )  # fmt: skip
        self.adapter_load = Histogram(
            "roundhouse_adapter_load_seconds",
            "Time to bring an adapter into a device place, by step (stage; place, with its probe; probe).",
            ["model", "step"], buckets=_LATENCY, registry=r,
        )  # fmt: skip
        self.adapter_probes = Counter(
            "roundhouse_adapter_probes", "Probes of adapters asked, by outcome (passed, failed, error).",
            ["model", "outcome"], registry=r,
        )  # fmt: skip

        self.provider_attempts = Counter(
            "roundhouse_provider_attempts",
            "Attempts at a provider's model by outcome (ok, left, refused, an error's code).",
            ["provider", "name", "outcome"], registry=r,
        )  # fmt: skip
        self.provider_state = Gauge(
            "roundhouse_provider_breaker", "Breaker of a provider's model: 0 closed, 0.5 half-open, 1 open.",
            ["provider", "name"], registry=r,
        )  # fmt: skip
        self.provider_running = Gauge(
            "roundhouse_provider_running", "Requests under way at a provider.", ["provider"], registry=r
        )

    def provider_attempt(self, provider: str, name: str, outcome: str) -> None:
        self.provider_attempts.labels(provider, name, outcome).inc()

    def forget(self, model: str) -> None:
        """Drop the series of a model that was removed."""
        for series in vars(self).values():
            if isinstance(series, MetricWrapperBase):
                with contextlib.suppress(ValueError):  # it has no models
                    series.remove_by_labels({"model": model})
