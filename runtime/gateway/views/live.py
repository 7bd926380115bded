"""What the console's page Now shows, sampled once a second."""

import time

from msgspec.structs import replace as replaced

from console.live import LiveView, MemoryUse, ModelPart, Ring, Stall, Stalls, StallState
from console.state import Console
from runtime.gateway.names import Names
from runtime.gateway.views.overview import DeviceView, Overview
from runtime.gateway.views.values import ModelView
from runtime.residency.policy import replica_id
from runtime.residency.states import HOLDS_MEMORY
from runtime.scheduling.queue import ModelQueue

MAX_AWAY = 100


class LiveSampler:
    """Samples once a second, on the event loop."""

    def __init__(self, names: Names, overview: Overview, console: Console, currency: str) -> None:
        self._names, self._overview, self._console, self._currency = names, overview, console, currency
        self._stalls: dict[str, Stalls] = {}

    def __call__(self, phase: str) -> LiveView:
        status, history = self._overview.status(), self._console.history
        queues = self._overview.queues
        now = time.monotonic()
        waits = [now - oldest for queue in queues.values() if (oldest := queue.oldest) is not None]
        host = (
            None
            if status.host is None
            else MemoryUse("host memory", status.host.budget_bytes, status.host.resident_bytes)
        )
        return LiveView(
            at=round(time.time(), 3),
            phase=phase,
            uptime=status.uptime_seconds,
            device=_use(status.device),
            devices=[_use(device) for device in status.devices],
            host=host,
            models=[part for model in status.models for part in _parts(model)],
            rings=[
                self._ring(model, part, queues[part.id])
                for model in status.models
                for part in _parts(model)
                if queues[part.id].policy.places
            ],
            running=sum(queue.running for queue in queues.values()),
            waiting=sum(queue.waiting for queue in queues.values()),
            longest_wait=round(max(waits, default=0.0), 3),
            next_to_leave=self._overview.next_to_leave(),
            minute=history.minute(),
            cost_per_accepted=self._overview.cost_per_accepted(),
            currency=self._currency,
            decisions=self._console.decisions.last(12),
            shares=history.shares(),
            requests=self._console.last(),
        )

    def _ring(self, model: ModelView, part: ModelPart, queue: ModelQueue) -> Ring:
        policy = queue.policy
        placed, moving = policy.resident(), policy.moving()
        at = self._stalls.setdefault(part.id, Stalls()).assign(policy.places, placed, moving)
        stalls = []
        for digest, number in at.items():
            status = policy.status(digest)
            state: StallState = "swap" if digest in moving else "run" if status.running else "held"
            stalls.append(
                Stall(
                    number, self._names.label_of(model.id, digest), state, status.running, status.waiting, status.pinned
                )
            )
        placed_names = {stall.adapter for stall in stalls}
        used, places = policy.host_use
        return Ring(
            model=part.id, state=part.state, places=policy.places, stalls=stalls, host_used=used,
            host_places=places, running=part.running, waiting=part.waiting, adapters=len(model.adapters),
            away=[name for name in model.adapters if name not in placed_names][:MAX_AWAY],
        )  # fmt: skip


def _use(device: DeviceView) -> MemoryUse:
    return MemoryUse(device.label, device.budget_bytes, device.resident_bytes, device.name, device.fault)


def _parts(model: ModelView) -> list[ModelPart]:
    """One part for each replica that is loaded or loading, and at least one for the first."""
    if not model.replicas:
        return [_part(model)]
    there = [replica for replica in model.replicas if replica.number == 1 or replica.state in HOLDS_MEMORY]
    return [
        _part(
            replaced(
                model, id=replica_id(model.id, one.number), state=one.state, bytes=one.bytes,
                host_bytes=one.host_bytes, devices=one.devices, running=one.running, waiting=one.waiting,
            )
        )
        for one in there
    ]  # fmt: skip


def _part(model: ModelView) -> ModelPart:
    progress = model.progress
    return ModelPart(
        id=model.id, task=model.task.value, state=model.state.value, bytes=model.bytes, host_bytes=model.host_bytes,
        devices=model.devices,
        running=model.running or 0, waiting=model.waiting or 0, pinned=model.pinned,
        idle_seconds=None if model.last_used is None else round(max(0.0, time.time() - model.last_used), 1),
        wake_seconds=model.expected_wake_seconds, phase=progress.phase if progress else "",
        percent=progress.percent if progress else None, detail=progress.detail if progress else "",
        failure=model.failure.message if model.failure else model.problem or "",
    )  # fmt: skip
