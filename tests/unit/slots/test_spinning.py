"""The event loop of a slot, which polls before it sleeps."""

import asyncio
import os
import selectors
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.recipes.loading import Documents
from runtime.config.device import Device
from runtime.config.settings import Settings, default_spin
from runtime.server.run import build
from runtime.slots.worker import SpinningSelector, event_loop


class Polls:
    """Records the timeouts of system calls, each of which advances the clock by a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready_after: int = 1_000_000) -> None:
        self.timeouts: list[float | None] = []
        self.ready_after = ready_after
        monkeypatch.setattr(selectors.EpollSelector, "select", self._select)
        monkeypatch.setattr(time, "monotonic", lambda: 0.001 * len(self.timeouts))

    def _select(self, timeout: float | None = None) -> list[object]:
        self.timeouts.append(timeout)
        return [object()] if len(self.timeouts) > self.ready_after else []


@pytest.fixture
def busy() -> Iterator[SpinningSelector]:
    selector = SpinningSelector(0.003, lambda: True)
    yield selector
    selector.close()


def test_a_busy_loop_polls_for_its_time_and_then_sleeps(
    busy: SpinningSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = Polls(monkeypatch)
    assert busy.select(0.01) == []
    assert polls.timeouts == [0, 0, 0, pytest.approx(0.007)]
    polls.timeouts.clear()
    busy.select(None)
    assert polls.timeouts == [0, 0, 0, None]


def test_a_shorter_timeout_ends_the_polling(busy: SpinningSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = Polls(monkeypatch)
    busy.select(0.001)
    assert polls.timeouts == [0, 0.0]
    polls.timeouts.clear()
    busy.select(0)
    assert polls.timeouts == [0]


def test_an_event_ends_the_polling(busy: SpinningSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = Polls(monkeypatch, ready_after=1)
    assert len(busy.select(None)) == 1
    assert polls.timeouts == [0, 0]


def test_an_idle_slot_sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = Polls(monkeypatch)
    selector = SpinningSelector(0.003, lambda: False)
    selector.select(None)
    selector.close()
    assert polls.timeouts == [None]


@pytest.mark.parametrize("seconds", [0.0, 0.0005])
def test_a_loop_works_with_and_without_spinning(seconds: float) -> None:
    async def ping() -> int:
        loop, (read, write) = asyncio.get_running_loop(), os.pipe()
        arrived: asyncio.Future[bytes] = loop.create_future()
        loop.add_reader(read, lambda: arrived.set_result(os.read(read, 1)))
        loop.call_later(0.002, os.write, write, b"x")
        await arrived
        for end in (read, write):
            loop.remove_reader(end)
            os.close(end)
        return await asyncio.to_thread(lambda: 1)

    with asyncio.Runner(loop_factory=lambda: event_loop(seconds, lambda: True)) as runner:
        assert runner.run(ping()) == 1


@pytest.mark.parametrize(("cores", "spins"), [(1, False), (2, False), (7, False), (8, True), (64, True)])
def test_only_a_machine_with_cores_to_spare_spins(cores: int, spins: bool) -> None:
    assert bool(default_spin(cores)) is spins


@pytest.mark.parametrize("seconds", [0.0, 0.0005])
def test_an_environment_variable_sets_the_time_of_each_slot(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_SLOT_SPIN", str(seconds))
    settings = Settings(recipes=(), data_dir=tmp_path / "data", run_dir=tmp_path / "run", prewarm=False, watch=False)
    server = build(settings, Documents(), Device("cpu", "cpu", "cpu", 100, 100))
    (api,) = server.litapi_connector.lit_apis
    assert api.loop.spin == seconds
