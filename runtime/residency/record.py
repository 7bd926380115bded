"""What a model's files and its earlier loads tell, put into its row of the model table."""

<<<<<<< HEAD
import logging
from collections.abc import Iterator
from contextlib import contextmanager
=======
>>>>>>> main
from dataclasses import dataclass
from pathlib import Path

from models.engines import engine_version
from models.messages import Held
from registry.recipes.definition import Recipe
from registry.records import LoadKey
from registry.state.database import State
from runtime.residency.entry import ModelEntry
from runtime.server.device import Device


@dataclass(frozen=True, slots=True)
class Found:
    """What a model's files tell: where they are, and estimates of what it needs."""

    path: Path
    revision: str
    needed: int
    needed_detail: str
    host_needed: int = 0
    host_adapters: int = 0
    load_seconds: float | None = None


def load_key(recipe: Recipe, device: Device) -> LoadKey:
    """What a measured load is known by: figures of another recipe version, engine version or device tell nothing."""
    return LoadKey(recipe.id, recipe.version, engine_version(recipe.engine.name), device.label)


def found(entry: ModelEntry, files: Found, state: State, device: Device) -> None:
    """Fill in what its files tell, and what earlier loads have told in place of estimates. Reads the state's file."""
    entry.needed, entry.needed_detail = files.needed, files.needed_detail
    entry.host_needed, entry.host_adapters = files.host_needed, files.host_adapters
    if files.load_seconds is not None:
        entry.load_seconds = files.load_seconds
    recall(entry, state, device)
    entry.revision, entry.path = files.revision, files.path  # last: with a path it counts as there


def recall(entry: ModelEntry, state: State, device: Device) -> None:
    """Have measured figures of earlier loads and sleeps, also of those before a restart, replace estimates."""
    key = load_key(entry.recipe, device)
    measured, slept = state.models.measured(key), state.models.slept(key)
    if measured is not None:
        entry.after_load, entry.margin = measured.resident_bytes, measured.margin_bytes
        entry.needed, entry.needed_detail = entry.after_load + entry.margin, "as measured at earlier loads"
        if measured.seconds:
            entry.load_seconds = sum(measured.seconds.values())
        if measured.host_bytes is not None and device.kind != "cpu":
            entry.host_needed = measured.host_bytes + entry.host_adapters
    if slept is not None:
        entry.slept = Held(device_bytes=slept.device_bytes, host_bytes=slept.host_bytes)
        entry.measured_sleep, entry.measured_wake = slept.seconds.get("sleep"), slept.seconds.get("wake")
<<<<<<< HEAD


def forget(entry: ModelEntry, files: Found | None, state: State, device: Device) -> None:
    """Measured figures go, estimates count again. What it holds now counts until it leaves."""
    state.models.forget(entry.id)
    entry.after_load, entry.margin = entry.loaded.resident_bytes if entry.loaded else 0, 0
    entry.slept = entry.measured_sleep = entry.measured_wake = None
    if files is not None:
        found(entry, files, state, device)


class ResidencyRecord:
    """The manager's `Observer`. Never raises: a full disk must not fail a load."""

    def __init__(self, metrics: Metrics, state: State, device: Device) -> None:
        self._metrics, self._state, self._device = metrics, state, device

    def loaded(self, entry: ModelEntry, loaded: Loaded, seconds: float, expected: float, needed: int) -> None:
        self._metrics.load.labels(entry.id).observe(seconds)
        if expected:
            self._metrics.load_error.labels(entry.id, "seconds").set((seconds - expected) / expected)
        if needed:
            self._metrics.load_error.labels(entry.id, "bytes").set((loaded.resident_bytes - needed) / needed)
        with self._kept(entry) as key:
            self._state.models.record_load(key, loaded.resident_bytes, loaded.seconds, loaded.host_bytes)
        log.info(
            "loaded",
            extra={
                "model": entry.id, "seconds": round(seconds, 3), "expected_s": round(expected, 3),
                "bytes": loaded.resident_bytes, "planned_bytes": needed, "phases": loaded.seconds,
            },
        )  # fmt: skip

    def load_failed(self, entry: ModelEntry, error: RoundhouseError) -> None:
        self._metrics.load_failures.labels(entry.id).inc()

    def retried(self, entry: ModelEntry, reason: str) -> None:
        self._metrics.load_retries.labels(entry.id, reason).inc()

    def grew(self, entry: ModelEntry) -> None:
        with self._kept(entry) as key:
            self._state.models.record_margin(key, entry.margin)
        log.info("holds more than after its load", extra={"model": entry.id, "bytes": entry.bytes})

    def evicted(self, entry: ModelEntry, reason: str) -> None:
        self._metrics.evictions.labels(entry.id, reason.split()[0]).inc()
        log.info("evicted", extra={"model": entry.id, "reason": reason})

    def slept(self, entry: ModelEntry, reason: str, seconds: float, freed: int) -> None:
        self._metrics.sleep.labels(entry.id, reason.split()[0]).observe(seconds)
        with self._kept(entry) as key:
            self._state.models.record_sleep(key, entry.bytes, entry.host_bytes, seconds)
        log.info(
            "asleep",
            extra={
                "model": entry.id, "reason": reason, "seconds": round(seconds, 3), "freed_bytes": freed,
                "bytes": entry.bytes, "host_bytes": entry.host_bytes,
            },
        )  # fmt: skip

    def woke(self, entry: ModelEntry, seconds: float) -> None:
        self._metrics.wake.labels(entry.id).observe(seconds)
        if entry.measured_wake is not None:
            with self._kept(entry) as key:
                self._state.models.record_wake(key, entry.measured_wake)
        log.info("awake", extra={"model": entry.id, "seconds": round(seconds, 3), "host_bytes": entry.host_bytes})

    def sleep_failed(self, entry: ModelEntry, step: Step, error: RoundhouseError) -> None:
        self._metrics.sleep_failures.labels(entry.id, step).inc()

    def died(self, entry: ModelEntry, reason: str) -> None:
        self._metrics.deaths.labels(entry.id, reason).inc()

    @contextmanager
    def _kept(self, entry: ModelEntry) -> Iterator[LoadKey]:
        try:
            yield load_key(entry.recipe, self._device)
        except RoundhouseError as error:
            log.warning("measured figures not kept", extra={"model": entry.id, "cause": error.message})
=======
>>>>>>> main
