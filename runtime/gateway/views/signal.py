"""The signal for autoscalers: each model's work and the replicas that it needs."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from runtime.gateway.metrics import Metrics
from runtime.gateway.views.values import Count
from runtime.residency.entry import ModelEntry
from runtime.residency.replicas import goal_of, predicted_wait
from runtime.residency.states import ModelState
from runtime.scheduling.signal import ClassDemand, ModelDemand, desired_replicas
from tenants.caller import ServiceClass

KV_SERIES = "vllm:kv_cache_usage_perc"
LEAST_LEAD = 1.0
"""Shortest assumed load in seconds."""
NOTHING = 1e-3
"""Work per second below which a class is idle."""
RUNNING = frozenset({ModelState.READY, ModelState.LOADING})


class ClassWaitView(msgspec.Struct, frozen=True):
    predicted_wait_seconds: Annotated[
        float, Meta(description="Seconds until a request would start behind all that wait in its class and above.")
    ]
    goal_seconds: float


class SignalView(msgspec.Struct, frozen=True, kw_only=True):
    """Work is in prompt tokens that take as long: a token of an answer counts as four."""

    model: str
    needed_replicas: Annotated[Count, Meta(description="Replicas that meet the goals of all classes.")] = msgspec.field(
        name="wanted_replicas"
    )
    replicas: Annotated[Count, Meta(description="Replicas that serve the model or load.")]
    waiting_work: float
    arriving_work_per_second: Annotated[float, Meta(description="A mean of about 30 s; refused work counts.")]
    replica_work_per_second: Annotated[float, Meta(description="Work of one replica; 0: nothing was measured yet.")]
    classes: dict[str, ClassWaitView]
    kv_cache_use: Annotated[float | None, Meta(description="Use of the fullest KV cache, 0 to 1; null: it has none.")]
    lead_seconds: Annotated[float, Meta(description="Expected until one more replica would serve.")]


class SignalListView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[SignalView]


def signal_of(entry: ModelEntry, kv_use: float | None) -> SignalView:
    """Compute the signal of one model.

    Args:
        entry: any of its replicas.
        kv_use: use of its fullest KV cache. None if it has none or its engine does not answer.
    """
    lead, now = entry.lead, entry.clock()
    policy, arrivals = lead.queue.policy, lead.queue.arrivals
    waiting, arriving = policy.waiting_by_class(), 0.0
    demands = []
    for one in ServiceClass:
        own = arrivals.rate(one, now)
        arriving += own
        if waiting[one] or own > NOTHING:
            demands.append(ClassDemand(goal_of(entry, one), policy.line.work_of_class(one), arriving))
    replicas = sum(replica.state in RUNNING for replica in entry.replicas)
    lead_seconds = max(LEAST_LEAD, lead.load_seconds)
    rate = lead.queue.rate
    demand = ModelDemand(replicas, entry.recipe.replicas.least, rate, lead_seconds, demands, kv_use or 0.0)
    return SignalView(
        model=entry.model,
        needed_replicas=desired_replicas(demand),
        replicas=replicas,
        waiting_work=round(sum(replica.queue.policy.line.work for replica in entry.replicas), 3),
        arriving_work_per_second=round(arriving, 3),
        replica_work_per_second=round(rate, 3),
        classes={
            one.label: ClassWaitView(round(predicted_wait(entry, one), 3), goal_of(entry, one)) for one in ServiceClass
        },
        kv_cache_use=kv_use,
        lead_seconds=round(lead_seconds, 3),
    )


def kv_use_of(texts: Mapping[str, str], entry: ModelEntry) -> float | None:
    """Read the use of a model's fullest KV cache. `texts`: its engines' series by replica."""
    lines = [
        line
        for replica in entry.replicas
        for line in texts.get(replica.id, "").splitlines()
        if line.startswith(KV_SERIES) and replica.is_ready
    ]
    return max((float(line.rpartition(" ")[2]) for line in lines), default=None)


def export(metrics: Metrics, signals: Iterable[SignalView]) -> None:
    """Set the series of these models."""
    for signal in signals:
        model = signal.model
        for label, wait in signal.classes.items():
            metrics.predicted_wait.labels(model, label).set(wait.predicted_wait_seconds)
            metrics.wait_goal.labels(model, label).set(wait.goal_seconds)
        metrics.waiting_work.labels(model).set(signal.waiting_work)
        metrics.arriving_work.labels(model).set(signal.arriving_work_per_second)
        metrics.replica_work.labels(model).set(signal.replica_work_per_second)
        if signal.kv_cache_use is None:  # such as after an unload
            metrics.kv_use.remove_by_labels({"model": model})
        else:
            metrics.kv_use.labels(model).set(signal.kv_cache_use)
        metrics.lead.labels(model).set(signal.lead_seconds)
        metrics.needed_replicas.labels(model).set(signal.needed_replicas)
