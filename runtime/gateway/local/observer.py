"""Records residency events as metrics, log lines, and measurements for the next start."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from console.history import Decisions
from models.messages import LoadResult
from registry.errors import RoundhouseError
from registry.records import LoadKey
from registry.state.database import State
from runtime.config.device import Device
from runtime.gateway.metrics import Metrics
from runtime.residency.entry import ModelEntry
from runtime.residency.measurements import load_key
from runtime.residency.table import Step

log = logging.getLogger("roundhouse.gateway")


class ResidencyRecord:
    """The manager's `Observer`. Never raises, since a full disk must not fail a load.

    Its own thread stores the measurements one after another, so a slow database delays nothing else.
    """

    def __init__(self, metrics: Metrics, state: State, device: Device, decisions: Decisions) -> None:
        self._metrics, self._state, self._device = metrics, state, device
        self._labels = {budget.device: budget.label for budget in device.budgets}
        self._decisions = decisions
        self._writer = ThreadPoolExecutor(1, "figures")

    def close(self) -> None:
        """Store the measurements now. Blocks."""
        self._writer.shutdown()

    def loaded(self, entry: ModelEntry, loaded: LoadResult, seconds: float, expected: float, needed: int) -> None:
        self._metrics.load.labels(entry.model).observe(seconds)
        plan = f"planned: {expected:.1f} s and {needed / 2**20:,.0f} MiB; "
        plan += f"it took {seconds:.1f} s and holds {loaded.resident_bytes / 2**20:,.0f} MiB"
        self._decisions.record("load", entry.id, entry.id, "is loaded", more=plan, seconds=seconds)
        if expected:
            self._metrics.load_error.labels(entry.model, "seconds").set((seconds - expected) / expected)
        if needed:
            self._metrics.load_error.labels(entry.model, "bytes").set((loaded.resident_bytes - needed) / needed)
        keep = self._state.models.record_load
        self._store(entry, lambda key: keep(key, loaded.resident_bytes, loaded.seconds, loaded.host_bytes))
        log.info(
            "loaded",
            extra={
                "model": entry.id, "seconds": round(seconds, 3), "expected_s": round(expected, 3),
                "bytes": loaded.resident_bytes, "planned_bytes": needed, "phases": loaded.seconds,
            },
        )  # fmt: skip

    def load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None:
        self._metrics.load_failures.labels(entry.model).inc()
        self._decisions.record("fail", entry.model, entry.id, "could not be loaded", more=error.message)

    def retried(self, entry: ModelEntry, reason: str) -> None:
        self._metrics.load_retries.labels(entry.model, reason).inc()

    def grew(self, entry: ModelEntry) -> None:
        keep, margin = self._state.models.record_margin, entry.margin
        self._store(entry, lambda key: keep(key, margin))
        log.info("holds more than after its load", extra={"model": entry.id, "bytes": entry.bytes})

    def evicted(self, entry: ModelEntry, reason: str) -> None:
        self._metrics.evictions.labels(entry.model, reason.split()[0]).inc()
        self._decisions.record("leave", entry.model, entry.id, "leaves the memory", more=reason)
        log.info("evicted", extra={"model": entry.id, "reason": reason})

    def slept(self, entry: ModelEntry, reason: str, seconds: float, freed: int) -> None:
        self._metrics.sleep.labels(entry.model, reason.split()[0]).observe(seconds)
        freed_words = f"{reason}; {freed / 2**20:,.0f} MiB are free again"
        self._decisions.record(
            "sleep", entry.model, entry.id, "sleeps in host memory", more=freed_words, seconds=seconds
        )
        keep, sizes, first = self._state.models.record_sleep, (entry.bytes, entry.host_bytes), entry.naps <= 1
        self._store(entry, lambda key: keep(key, *sizes, seconds, first=first))
        log.info(
            "asleep",
            extra={
                "model": entry.id, "reason": reason, "seconds": round(seconds, 3), "freed_bytes": freed,
                "bytes": entry.bytes, "host_bytes": entry.host_bytes,
            },
        )  # fmt: skip

    def woke(self, entry: ModelEntry, seconds: float) -> None:
        self._metrics.wake.labels(entry.model).observe(seconds)
        self._decisions.record(
            "wake", entry.model, entry.id, "is awake", more=f"after {seconds:.2f} s", seconds=seconds
        )
        if (measured := entry.measured_wake) is not None:
            keep = self._state.models.record_wake
            self._store(entry, lambda key: keep(key, measured))
        log.info("awake", extra={"model": entry.id, "seconds": round(seconds, 3), "host_bytes": entry.host_bytes})

    def sleep_failed(self, entry: ModelEntry, step: Step, error: RoundhouseError) -> None:
        self._metrics.sleep_failures.labels(entry.model, step).inc()

    def died(self, entry: ModelEntry, reason: str) -> None:
        self._metrics.deaths.labels(entry.model, reason).inc()
        self._decisions.record("died", entry.model, entry.id, "died and will come back", more=reason)

    def _store(self, entry: ModelEntry, write: Callable[[LoadKey], object]) -> None:
        key = load_key(entry.recipe, self._labels.get(next(iter(entry.devices), ""), self._device.label))
        self._writer.submit(self._write, entry.id, key, write)

    @staticmethod
    def _write(model: str, key: LoadKey, write: Callable[[LoadKey], object]) -> None:
        try:
            write(key)
        except RoundhouseError as error:
            log.warning("measured figures not kept", extra={"model": model, "cause": error.message})
        except Exception:
            log.exception("measured figures not kept", extra={"model": model})
