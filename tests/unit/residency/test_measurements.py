"""Measurements are stored, and the next server plans with them."""

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from console.history import Decisions
from models.messages import LoadResult, MemoryFootprint
from registry.records import LoadKey
from registry.state.database import FILE, State
from registry.state.formats import MIGRATIONS
from runtime.config.device import Device
from runtime.gateway.local.observer import ResidencyRecord
from runtime.gateway.metrics import Metrics
from runtime.residency import policy
from runtime.residency.entry import ModelEntry
from runtime.residency.measurements import FileEstimates, apply_files, apply_history, forget, load_history, load_key
from runtime.residency.states import ModelState
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from tests.eventually import PATIENCE
from tests.fakes.gateway import NoAdapters
from tests.unit.residency.scripted import recipe

GPU = Device("cuda", "cuda:0", "NVIDIA H200", 1000, 110, 1000, 180)
CAN_SLEEP = LoadResult(
    resident_bytes=100, weights_bytes=80, host_bytes=12, seconds={"weights": 1.5},
    asleep=MemoryFootprint(device_bytes=40, host_bytes=120),
)  # fmt: skip


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with State(tmp_path, lambda: 100.0) as opened:
        yield opened


def entry(name: str = "a", **residency: object) -> ModelEntry:
    """Return an entry like the gateway's, with estimates."""
    made = ModelEntry(
        recipe=recipe(name, **residency), path=None, revision="r", needed=150, needed_detail="estimated",
        load_seconds=10.0, queue=None, host_needed=50, host_adapters=7, clock=lambda: 100.0,  # type: ignore[arg-type]
    )  # fmt: skip
    made.queue = ModelQueue(made.recipe, WaitingBound(10), lambda: None, lambda: None, NoAdapters())
    return made


def live_once(state: State) -> None:
    """Record a first process of model a, which loads, sleeps twice and wakes once."""
    record, first = ResidencyRecord(Metrics(), state, GPU, Decisions(lambda: None)), entry()
    first.naps = 1
    record.loaded(first, CAN_SLEEP, 2.0, 10.0, 150)
    first.bytes, first.host_bytes = 5, 90
    record.slept(first, "idle", 4.0, 95)
    first.measured_wake = 0.5
    record.woke(first, 3.0)
    first.naps = 2
    record.slept(first, "idle", 1.0, 95)
    record.close()


def test_earlier_loads_and_sleeps_replace_the_estimates(state: State) -> None:
    live_once(state)
    again = entry()
    apply_history(again, load_history(again.recipe, state, GPU))
    assert (again.needed, again.host_needed, again.load_seconds) == (100, 12 + 7, 1.5)
    assert again.slept == MemoryFootprint(device_bytes=5, host_bytes=90)
    assert again.wake_seconds == 0.5, "only the wake, without the wait for room before it"
    assert again.sleep_seconds == 4.0, "like the first one in a process"
    again.naps = 1
    assert again.sleep_seconds == 1.0, "like later ones"


def test_measurements_are_not_used_for_other_recipes_or_devices(state: State) -> None:
    live_once(state)
    other = entry("b")
    apply_history(other, load_history(other.recipe, state, GPU))
    assert (other.needed, other.host_needed, other.slept, other.measured_wake) == (150, 50, None, None)
    other = entry()
    apply_history(other, load_history(other.recipe, state, replace(GPU, label="NVIDIA A100")))
    assert (other.needed, other.slept, other.measured_sleep) == (150, None, None)
    assert other.measured_first_sleep is None


def test_measurements_of_any_of_the_servers_devices_are_used(state: State) -> None:
    live_once(state)
    both: Any = SimpleNamespace(kind="cuda", budgets=[SimpleNamespace(label=label) for label in ("other", GPU.label)])
    again = entry()
    apply_history(again, load_history(again.recipe, state, both))
    assert (again.needed, again.measured_wake) == (100, 0.5)


def test_host_memory_that_was_not_measured_stays_estimated(state: State) -> None:
    live_once(state)
    history = load_history(entry().recipe, state, GPU)
    assert history.measured is not None
    for unknown in (
        replace(history, measured=replace(history.measured, host_bytes=None)),
        replace(history, beside_gpu=False),
    ):
        again = entry()
        apply_history(again, unknown)
        assert (again.needed, again.host_needed) == (100, 50)


def test_plans_use_measurements(state: State) -> None:
    """By the engine's estimate a sleep is not worth it. By the measurements it is, and the plan has its duration."""
    live_once(state)
    plans = []
    for known in (False, True):
        one = entry(min_resident=0)
        if known:
            apply_history(one, load_history(one.recipe, state, GPU))
        one.state, one.loaded, one.bytes, one.needed = ModelState.READY, CAN_SLEEP, 100, 100
        one.devices = (GPU.name,)
        resident = one.resident()
        assert resident is not None
        snapshot = policy.Snapshot(GPU.budgets, (resident,), 1, 100.0, 110)
        plans.append(policy.plan(snapshot, policy.Need("b", 100, 2.0, 100.0)))
    assert [[v.action for v in plan.victims] for plan in plans] == [["evict"], ["sleep"]]
    assert plans[0].expected_seconds == 2.0
    assert plans[1].expected_seconds == 2.0 + 4.0, "the first sleep in its present process"


def test_a_wake_without_a_recorded_sleep_is_not_stored(state: State) -> None:
    """For example, the disk was full when the model slept."""
    state.models.record_wake(load_key(recipe("a"), GPU.label), 0.5)
    assert state.models.slept(load_key(recipe("a"), GPU.label)) is None


def test_growth_without_a_recorded_load_is_not_stored(state: State) -> None:
    """For example, the disk was full when the model was loaded."""
    record, grown = ResidencyRecord(Metrics(), state, GPU, Decisions(lambda: None)), entry()
    grown.margin = 20
    record.grew(grown)
    record.close()
    again = entry()
    apply_history(again, load_history(again.recipe, state, GPU))
    assert (again.needed, again.load_seconds) == (150, 10.0)


def test_a_working_margin_is_stored_and_forgotten_with_the_rest(state: State) -> None:
    live_once(state)
    grown = entry()
    grown.margin = 20
    record = ResidencyRecord(Metrics(), state, GPU, Decisions(lambda: None))
    record.grew(grown)
    record.close()
    again = entry()
    apply_history(again, load_history(again.recipe, state, GPU))
    assert (again.needed, again.after_load, again.margin) == (120, 100, 20)
    files = FileEstimates(Path("x"), "r", 150, "estimated", 50, 7, 10.0)
    state.models.forget(again.id)
    forget(again, files)
    assert (again.needed, again.needed_detail, again.after_load, again.margin) == (150, "estimated", 0, 0)
    assert (again.slept, again.measured_sleep, again.measured_wake) == (None, None, None)
    assert again.measured_first_sleep is None
    apply_history(again, load_history(again.recipe, state, GPU))
    assert again.needed == 150


def test_on_a_gpu_the_memory_of_a_step_is_added_to_the_measured_load(state: State) -> None:
    """After its load, an engine has returned that memory, but will need it again."""
    files = FileEstimates(Path("x"), "r", 150, "estimated", step=30)
    first = entry()
    apply_files(first, files, load_history(first.recipe, state, GPU))
    assert first.needed == 150
    live_once(state)
    again = entry()
    apply_files(again, files, load_history(again.recipe, state, GPU))
    assert (again.needed, again.after_load, again.margin) == (130, 100, 30)
    state.models.forget(again.id)
    forget(again, files)
    assert (again.needed, again.margin) == (150, 30)


def test_an_excessive_measurement_of_an_older_version_is_corrected(tmp_path: Path) -> None:
    """An older version had recorded that starter-chat, which needs 1.1 GiB, once grew to 7.3 GB."""
    cpu, chat = Device("cpu", "cpu", "cpu", 2**34, 2**33), entry("starter-chat")
    old = sqlite3.connect(tmp_path / FILE)
    for script in MIGRATIONS[:3]:
        old.executescript(script)
    runaway = (*load_key(chat.recipe, cpu.label), 7_300_640_768, 7_300_640_768, '{"weights": 1.5}', 3, 5.0, None)
    old.execute("INSERT INTO loads VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", runaway)
    old.execute("PRAGMA user_version = 3")
    old.commit()
    old.close()
    with State(tmp_path) as state:
        apply_files(
            chat, FileEstimates(tmp_path, "r", 1_150_000_000, "estimated"), load_history(chat.recipe, state, cpu)
        )
        assert chat.needed == 1_150_000_000
        state.models.record_load(load_key(chat.recipe, cpu.label), 900_000_000, {})
        apply_history(chat, load_history(chat.recipe, state, cpu))
        assert chat.needed == 900_000_000


def test_records_are_written_after_a_hanging_database_has_recovered(state: State) -> None:
    """Recording does not wait for the database."""
    record, one, hangs = ResidencyRecord(Metrics(), state, GPU, Decisions(lambda: None)), entry(), threading.Event()
    keep = state.models.record_load

    def later(key: LoadKey, *figures: Any) -> Any:
        assert hangs.wait(PATIENCE)
        return keep(key, *figures)

    state.models.record_load = later  # type: ignore[method-assign]
    record.loaded(one, CAN_SLEEP, 2.0, 10.0, 150)
    one.margin = 20
    record.grew(one)
    assert state.models.measured(load_key(one.recipe, GPU.label)) is None
    hangs.set()
    record.close()
    again = entry()
    apply_history(again, load_history(again.recipe, state, GPU))
    assert (again.needed, again.margin) == (120, 20)
