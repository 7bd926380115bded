"""The server as a whole: resident models by device, and metrics that are read on demand."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from prometheus_client import Counter
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from registry.recipes.definition import Tier
from registry.records import Adapter
from runtime.config.budgets import DeviceBudget
from runtime.config.device import Device, machine_total, used_of
from runtime.gateway.metrics import Metrics
from runtime.gateway.models import Models
from runtime.gateway.names import Names
from runtime.gateway.views.engine_series import add_families, engine_series, engine_texts
from runtime.gateway.views.facts import AdapterRow, fill, row
from runtime.gateway.views.signal import export, kv_use_of, signal_of
from runtime.gateway.views.values import Count, ModelView
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.states import ModelState
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from runtime.slots.pool import SlotPool
from tenants.caller import Caller

IN_MEMORY = (Tier.DEVICE, Tier.HOST)


class DeviceView(msgspec.Struct, frozen=True):
    name: str
    label: str
    total_bytes: Count
    budget_bytes: Count
    resident_bytes: Count
    free_bytes: int
    uuid: Annotated[str, Meta(description="The GPU's UUID if it is one of several; else empty.")] = ""
    fault: Annotated[str, Meta(description="Why it is gone; empty: it is there.")] = ""


class HostView(msgspec.Struct, frozen=True):
    total_bytes: Count
    budget_bytes: Count
    resident_bytes: Count
    free_bytes: int


class PrewarmedView(msgspec.Struct, frozen=True):
    slot: Count
    engine: str
    state: Literal["warm", "importing"]
    bytes: Count


class SlotsView(msgspec.Struct, frozen=True):
    total: Count
    free: Count
    restarts: Count
    prewarmed: list[PrewarmedView]


class StatusView(msgspec.Struct, frozen=True):
    device: Annotated[DeviceView, Meta(description="All devices together.")]
    devices: list[DeviceView]
    host: Annotated[HostView | None, Meta(description="Host memory beside a GPU.")]
    slots: SlotsView
    waiting: Annotated[int, Meta(ge=0, description="Requests that wait in the whole server.")]
    pid: int
    uptime_seconds: float
    models: list[ModelView]
    recipe_faults: Annotated[
        list[str], Meta(description="Faults of the recipe files at their last reading; what they said before counts.")
    ]
    degraded: Annotated[list[str], Meta(description="What does not work now, as in /health/ready.")]


class Overview:
    def __init__(
        self,
        device: Device,
        names: Names,
        models: Models,
        residency: ResidencyManager,
        pool: SlotPool,
        bounds: WaitingBound,
        metrics: Metrics,
        recipe_faults: Callable[[], Sequence[str]],
    ) -> None:
        self._device, self._names, self._models, self._residency = device, names, models, residency
        self._pool, self._bounds, self._metrics = pool, bounds, metrics
        self._recipe_faults = recipe_faults
        self._began = time.monotonic()
        self._rendering = asyncio.Lock()

    @property
    def queues(self) -> Mapping[str, ModelQueue]:
        return {entry.id: entry.queue for entry in self._replicas()}

    def _replicas(self) -> list[ModelEntry]:
        return [replica for entry in self._residency.entries.values() for replica in entry.replicas]

    def status(self, caller: Caller | None = None, degraded: Sequence[str] = ()) -> StatusView:
        """Show what is in memory.

        caller: sees only its own and shared adapters. None is the operator, who sees all.
        degraded: names of the parts that do not work at present.
        """
        device, pool = self._device, self._pool
        used_bytes = self._residency.table.used_bytes()
        return StatusView(
            device=DeviceView(
                device.name, device.label, device.total, device.budget, used_bytes, device.budget - used_bytes
            ),
            devices=[self._view(budget) for budget in device.budgets],
            host=self._host(),
            slots=SlotsView(
                pool.size,
                pool.free,
                pool.restarts,
                [
                    PrewarmedView(
                        link.slot_id, link.prewarmed or "", "warm" if link.warm else "importing", link.prewarmed_bytes
                    )
                    for link in pool.prewarmed()
                ],
            ),
            waiting=self._bounds.waiting,
            pid=os.getpid(),
            uptime_seconds=round(time.monotonic() - self._began, 1),
            models=self._models.views(caller),
            recipe_faults=list(self._recipe_faults()),
            degraded=list(degraded),
        )

    def _view(self, budget: DeviceBudget) -> DeviceView:
        table = self._residency.table
        held = table.used_bytes(device=budget.device)
        return DeviceView(
            budget.device, budget.label, budget.total, budget.bytes, held, budget.bytes - held, budget.uuid,
            table.lost.get(budget.device, ""),
        )  # fmt: skip

    def _host(self) -> HostView | None:
        """Host memory. None on a CPU, where the device is the host."""
        device = self._device
        if device.kind == "cpu":
            return None
        used_bytes = self._residency.table.used_host_bytes()
        return HostView(device.host_total, device.host_budget, used_bytes, device.host_budget - used_bytes)

    @property
    def lost_devices(self) -> Mapping[str, str]:
        """Lost devices, with the reason."""
        return self._residency.table.lost

    def judged(self, model: str, accepted: bool) -> None:
        """Count a client's verdict on an answer."""
        self._metrics.judged.labels(model, "accepted" if accepted else "rejected").inc()

    def cost_per_accepted(self) -> float | None:
        """List price of all answers per accepted answer since startup. None if none was accepted."""
        accepted = sum(
            sample.value
            for sample in _samples(self._metrics.judged)
            if sample.name.endswith("_total") and sample.labels["verdict"] == "accepted"
        )
        cost = sum(sample.value for sample in _samples(self._metrics.cost) if sample.name.endswith("_total"))
        return cost / accepted if accepted else None

    def next_to_leave(self) -> dict[str, str]:
        """Models that are evicted first if their device needs room, and how they leave."""
        return {victim.id: victim.action for victim in self._residency.next_to_leave()}

    def remaining_work(self) -> tuple[int, int, int]:
        """Numbers of running requests, waiting requests and models in memory."""
        models = sum(entry.tier is not Tier.DISK for entry in self._replicas())
        return sum(q.running for q in self.queues.values()), sum(q.waiting for q in self.queues.values()), models

    async def metrics(self, accept: str, faults: Mapping[str, bool]) -> tuple[bytes, str]:
        """Return Prometheus text, or OpenMetrics with exemplars, and its content type.

        faults: what may stop working, and whether it has.
        """
        encode, content_type = choose_encoder(accept)
        is_open = content_type.startswith("application/openmetrics-text")
        m = self._metrics
        for fault, is_so in faults.items():
            m.degraded.labels(fault).set(is_so)
        rows: list[AdapterRow] = []
        for entry in self._residency.entries.values():
            there = [replica for replica in entry.replicas if replica.tier in IN_MEMORY]
            m.resident.labels(entry.id, "device").set(sum(one.bytes for one in there))
            m.resident.labels(entry.id, "host").set(sum(one.host_bytes for one in there))
            for state in ModelState:
                m.state.labels(entry.id, state.value).set(entry.lead.state is state)
            queue = entry.queue
            m.running.labels(entry.id).set(sum(replica.queue.running for replica in entry.replicas))
            m.waiting.labels(entry.id).set(sum(replica.queue.waiting for replica in entry.replicas))
            for service_class, count in queue.policy.waiting_by_class().items():
                m.class_waiting.labels(entry.id, service_class.label).set(count)
            m.replicas.labels(entry.id).set(sum(replica.is_ready for replica in entry.replicas))
            for pool in entry.recipe.pools:
                running = sum(replica.queue.policy.running_in(pool) for replica in entry.replicas)
                m.pool_running.labels(entry.id, pool).set(running)
                m.pool_waiting.labels(entry.id, pool).set(queue.policy.waiting_in(pool))
            rows += [row(adapter, queue) for adapter in self._names.everything.adapters(entry.id)]
        for budget in self._device.budgets:
            m.device_budget.labels(budget.device).set(budget.bytes)
            m.device_resident.labels(budget.device).set(self._residency.table.used_bytes(device=budget.device))
        m.restarts.set(self._pool.restarts)
        replicas = self._replicas()
        texts = await engine_texts(replicas)
        export(m, [signal_of(entry, kv_use_of(texts, entry)) for entry in self._residency.entries.values()])
        info = self._lora_info() + engine_series(texts, replicas)
        async with self._rendering:  # in a thread, since the text for 1,000 adapters takes longer than a token
            text = await asyncio.to_thread(_render, m, rows, self._device, encode)
        return (add_families(text, info) if is_open else text + info), content_type

    def _lora_info(self) -> bytes:
        """Export vLLM's own series with its labels, so that dashboards for vLLM keep working."""
        lines = [
            "# HELP vllm:lora_requests_info Running stats on lora requests.",
            "# TYPE vllm:lora_requests_info gauge",
        ]
        now = time.time()
        for entry in self._residency.entries.values():
            places = entry.recipe.memory.adapters.device
            if not places:
                continue
            adapters = self._names.everything.adapters(entry.id)
            running, waiting = (",".join(_names_of(adapters, used)) for used in entry.queue.used_digests())
            labels = f'max_lora="{places}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
            lines.append(f"vllm:lora_requests_info{{{labels}}} {now}")
        lines = list(dict.fromkeys(lines))  # idle bases with as many places have the same series
        return ("\n".join(lines) + "\n").encode() if len(lines) > 2 else b""


def _names_of(adapters: Iterable[Adapter], digests: Set[str]) -> list[str]:
    """Return the names of adapters that have a version with one of these digests."""
    if not digests:
        return []
    return [one.key.label for one in adapters if any(version.digest in digests for version in one.versions)]


def _samples(counter: Counter) -> list[Sample]:
    return [sample for metric in counter.collect() for sample in metric.samples]


def _render(
    metrics: Metrics, rows: Sequence[AdapterRow], device: Device, encode: Callable[[Collector], bytes]
) -> bytes:
    fill(metrics, rows)
    seen = device.budgets if device.kind == "cuda" else device.budgets[:1]  # all parts of a CPU are the same machine
    for budget in seen:
        used, busy = used_of(device, budget)
        for gauge, value in (
            (metrics.device_used, used),
            (metrics.device_busy, busy),
            (metrics.device_total, machine_total(device, budget)),
        ):
            name = budget.device if device.kind == "cuda" else device.name
            if value is None:  # such as of a lost GPU
                gauge.remove_by_labels({"device": name})
            else:
                gauge.labels(name).set(value)
    return encode(metrics.registry)
