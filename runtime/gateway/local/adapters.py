"""What the gateway knows about the adapters of this machine's models, for their queues."""

import asyncio
import logging
from collections.abc import Sequence

from adapters.service import AdapterService
from console.state import Console
from registry.errors import RoundhouseError
from registry.records import Adapter, Probe
from runtime.gateway.metrics import Metrics
from runtime.gateway.names import Names
from runtime.scheduling.effects import Step

log = logging.getLogger("roundhouse.adapters")


class LocalAdapterRegistry:
    """`runtime.scheduling.effects.AdapterRegistry` for one model."""

    def __init__(self, names: Names, service: AdapterService, metrics: Metrics, console: Console, model: str) -> None:
        self._names, self._service, self._metrics, self._model = names, service, metrics, model
        self._console = console
        self._seen: object = None
        self._probes: dict[str, tuple[Probe | None, ...]] = {}
        self._collecting: set[asyncio.Task[None]] = set()

    async def check(self, digest: str) -> None:
        await self._service.ready(digest)

    def probes(self, digest: str) -> Sequence[Probe | None]:
        catalog = self._names.everything
        if self._seen is not catalog:  # the registry has changed since
            self._seen, self._probes = catalog, _by_digest(catalog.adapters(self._model))
        return self._probes.get(digest, ())

    def dropped(self, digest: str) -> None:
        task = asyncio.create_task(self._collect())
        self._collecting.add(task)
        task.add_done_callback(self._collecting.discard)

    async def _collect(self) -> None:
        try:
            await self._service.collect()
        except (RoundhouseError, OSError) as error:  # the next start or removal retries
            log.warning("files of removed adapters stay for now", extra={"cause": str(error)})

    def note(self, step: Step, seconds: float, outcome: str) -> None:
        metrics = self._metrics
        if step == "probe":
            metrics.adapter_probes.labels(self._model, outcome).inc()
        if outcome != "failed":
            metrics.adapter_load.labels(self._model, step).observe(seconds)

    def swapped(self, digest: str, evicted: str | None, staging: float, placing: float) -> None:
        label, model = self._names.label_of, self._model
        more = f"staged in {staging * 1e3:.1f} ms, placed in {placing * 1e3:.1f} ms"
        if evicted is None:
            words, before = "comes into a free place", ""
        else:
            words, before = "takes the place of", label(model, evicted)
            more = f"the least recently used one that was idle and not pinned; {more}"
        self._console.history.swapped()
        self._console.decisions.record("swap", model, label(model, digest), words, before, more, staging + placing)


def _by_digest(adapters: Sequence[Adapter]) -> dict[str, tuple[Probe | None, ...]]:
    probes: dict[str, dict[Probe | None, None]] = {}
    for adapter in adapters:
        for version in adapter.versions:
            probes.setdefault(version.digest, {})[version.probe] = None
    return {digest: tuple(probes) for digest, probes in probes.items()}
