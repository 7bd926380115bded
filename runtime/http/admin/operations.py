"""Health, readiness, metrics, status."""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from registry.recipes.definition import Tier
from runtime.gateway.adapter_facts import AdapterRow, fill, row
from runtime.gateway.core import Gateway
from runtime.gateway.metrics import Metrics
from runtime.http.admin.views import model_view
from runtime.residency.states import ModelState

IN_MEMORY = (Tier.DEVICE, Tier.HOST)


class Operations:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._began = time.time()
        self._rendering = asyncio.Lock()

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [
            ("/health/live", self.live, ["GET"]),
            ("/health/ready", self.ready, ["GET"]),
            ("/metrics", self.metrics, ["GET"]),
            ("/v1/status", self.status, ["GET"]),
        ]

    async def live(self) -> Response:
        """200 while the gateway's event loop answers."""
        return JSONResponse({"status": "live"})

    async def ready(self) -> Response:
        """200 once requests can be answered (models load on demand); 503 while starting or draining."""
        gateway = self.gateway
        if gateway.ready and not gateway.stopping:
            return JSONResponse({"status": "ready", "faults": gateway.starting_faults})
        word = "stopping" if gateway.stopping else "starting"
        return JSONResponse({"status": word}, 503, headers={"Retry-After": "1"})

    async def metrics(self) -> Response:
        """Prometheus text."""
        gateway, m = self.gateway, self.gateway.metrics
        rows: list[AdapterRow] = []
        for entry in gateway.residency.entries.values():
            m.resident.labels(entry.id, "device").set(entry.bytes if entry.tier in IN_MEMORY else 0)
            m.resident.labels(entry.id, "host").set(entry.host_bytes if entry.tier in IN_MEMORY else 0)
            for state in ModelState:
                m.state.labels(entry.id, state.value).set(entry.state is state)
            queue = gateway.queue(entry)
            m.running.labels(entry.id).set(queue.running)
            m.waiting.labels(entry.id).set(queue.waiting)
            rows += [row(adapter, queue) for adapter in gateway.catalog.adapters(entry.id)]
        m.restarts.set(gateway.pool.restarts)
        info = _lora_info(gateway)
        async with self._rendering:  # in a thread: with 1,000 adapters the text takes longer than a token
            text = await asyncio.to_thread(_render, m, rows)
        return Response(text + info, media_type=CONTENT_TYPE_LATEST)

    async def status(self) -> dict[str, Any]:
        """What is resident where, with bytes and last use."""
        gateway = self.gateway
        entries = gateway.residency.entries.values()
        held = gateway.residency.held()
        return {
            "device": {
                "name": gateway.device.name,
                "label": gateway.device.label,
                "total_bytes": gateway.device.total,
                "budget_bytes": gateway.device.budget,
                "resident_bytes": held,
                "free_bytes": gateway.device.budget - held,
            },
            "host": self._host(),
            "slots": {
                "total": gateway.pool.size,
                "free": gateway.pool.free,
                "restarts": gateway.pool.restarts,
                "prewarmed": [
                    {
                        "slot": link.slot_id,
                        "engine": link.prewarmed,
                        "state": "warm" if link.warm else "importing",
                        "bytes": link.prewarmed_bytes,
                    }
                    for link in gateway.pool.prewarmed()
                ],
            },
            "waiting": gateway.bounds.waiting,
            "pid": os.getpid(),
            "uptime_seconds": round(time.time() - self._began, 1),
            "models": [model_view(gateway, entry) for entry in entries],
        }

    def _host(self) -> dict[str, int] | None:
        """Host memory beside a GPU. On a CPU there is none besides the device's."""
        device = self.gateway.device
        if device.kind == "cpu":
            return None
        held = self.gateway.residency.held_on_host()
        return {
            "total_bytes": device.host_total,
            "budget_bytes": device.host_budget,
            "resident_bytes": held,
            "free_bytes": device.host_budget - held,
        }


def _render(metrics: Metrics, rows: Sequence[AdapterRow]) -> bytes:
    fill(metrics, rows)
    return metrics.render()


def _lora_info(gateway: Gateway) -> bytes:
    """vLLM's own series name and labels, so that dashboards made for it go on working."""
    lines = [
        "# HELP vllm:lora_requests_info Running stats on lora requests.",
        "# TYPE vllm:lora_requests_info gauge",
    ]
    now = time.time()
    for entry in gateway.residency.entries.values():
        places = entry.recipe.memory.adapters.device
        if not places:
            continue
        queue = gateway.queue(entry)
        running, waiting = [], []
        for adapter in gateway.catalog.adapters(entry.id):
            statuses = [queue.policy.status(digest) for digest in {v.digest for v in adapter.versions}]
            running += [adapter.key.name] if any(status.running for status in statuses) else []
            waiting += [adapter.key.name] if any(status.waiting for status in statuses) else []
        labels = (
            f'max_lora="{places}",running_lora_adapters="{",".join(running)}",'
            f'waiting_lora_adapters="{",".join(waiting)}"'
        )
        lines.append(f"vllm:lora_requests_info{{{labels}}} {now}")
    return ("\n".join(lines) + "\n").encode() if len(lines) > 2 else b""
