"""Fill a model's row of the table with estimates from its files and measurements of earlier loads."""

from dataclasses import dataclass
from pathlib import Path

from models.engines import engine_version
from models.estimate import Estimate
from models.messages import MemoryFootprint
from registry.recipes.definition import Recipe
from registry.records import LoadKey, LoadMeasurement, SleepMeasurement
from registry.state.database import State
from runtime.config.device import Device
from runtime.residency.entry import ModelEntry


@dataclass(frozen=True, slots=True)
class FileEstimates:
    """The path of a model's files, and estimates of its needs."""

    path: Path
    revision: str
    needed: int
    needed_detail: str
    host_needed: int = 0
    host_adapters: int = 0
    load_seconds: float | None = None
    step: int = 0
    """Bytes for one engine step on a GPU. Not measurable, because vLLM frees them after a load."""


def load_key(recipe: Recipe, label: str) -> LoadKey:
    """Return the key of a measured load on a device with this label.

    Measurements of another recipe version, engine version or device do not apply.
    """
    return LoadKey(recipe.id, recipe.version, engine_version(recipe.engine.name), label)


@dataclass(frozen=True, slots=True)
class LoadHistory:
    """Measurements of earlier loads and sleeps, including those before a restart."""

    measured: LoadMeasurement | None
    slept: SleepMeasurement | None
    beside_gpu: bool


def load_history(recipe: Recipe, state: State, device: Device) -> LoadHistory:
    """Return the measurements for the first kind of device that has any. Blocks on the database."""
    keys = [load_key(recipe, label) for label in dict.fromkeys(b.label for b in device.budgets)]
    key = next((key for key in keys if state.models.measured(key) is not None), keys[0])
    return LoadHistory(state.models.measured(key), state.models.slept(key), device.kind != "cpu")


def apply_files(entry: ModelEntry, files: FileEstimates, history: LoadHistory) -> None:
    """Fill in estimates from the files, and measurements if there are any."""
    entry.needed, entry.needed_detail, entry.margin = files.needed, files.needed_detail, files.step
    entry.host_needed, entry.host_adapters = files.host_needed, files.host_adapters
    if files.load_seconds is not None:
        entry.load_seconds = files.load_seconds
    apply_history(entry, history)
    entry.revision, entry.path = files.revision, files.path  # last, because an entry with a path counts as fetched


def apply_estimate(entry: ModelEntry, needs: Estimate) -> None:
    """Apply the expected needs of a model whose files are still missing."""
    entry.needed, entry.needed_detail = needs.total, needs.explain()


def apply_history(entry: ModelEntry, history: LoadHistory) -> None:
    """Replace estimates by measurements of earlier loads and sleeps."""
    measured, slept = history.measured, history.slept
    if measured is not None:
        entry.after_load, entry.margin = measured.resident_bytes, max(entry.margin, measured.margin_bytes)
        entry.needed, entry.needed_detail = entry.after_load + entry.margin, "as measured at earlier loads"
        if measured.seconds:
            entry.load_seconds = sum(measured.seconds.values())
        if measured.host_bytes is not None and history.beside_gpu:
            entry.host_needed = measured.host_bytes + entry.host_adapters
    if slept is not None:
        entry.slept = MemoryFootprint(device_bytes=slept.device_bytes, host_bytes=slept.host_bytes)
        entry.measured_first_sleep, entry.measured_sleep = slept.seconds.get("first"), slept.seconds.get("sleep")
        entry.measured_wake = slept.seconds.get("wake")


def forget(entry: ModelEntry, files: FileEstimates | None) -> None:
    """Return to estimates after the measurements were deleted from the database.

    The memory that a loaded model holds still counts until it leaves.
    """
    entry.after_load, entry.margin = entry.loaded.resident_bytes if entry.loaded else 0, 0
    entry.slept = entry.measured_first_sleep = entry.measured_sleep = entry.measured_wake = None
    if files is not None:
        apply_files(entry, files, LoadHistory(None, None, False))
