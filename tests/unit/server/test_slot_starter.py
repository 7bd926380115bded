"""The main process starts slots that the API process requests."""

import errno
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.server import slot_starter
from runtime.server.slot_starter import SlotStarter
from tests.eventually import eventually


class Worker:
    """A worker process of LitServe."""

    def __init__(self, number: int) -> None:
        self.number, self.killed = number, False

    def is_alive(self) -> bool:
        return not self.killed

    def kill(self) -> None:
        self.killed = True


class Shell:
    """The parts of LitServer that a start uses. The errors in `failures` are raised first."""

    def __init__(self) -> None:
        self.litapi_connector = SimpleNamespace(lit_apis=[SimpleNamespace(api_path="/x")])
        self._workers_per_device_by_api_path = {"/x": 1}
        self.inference_workers = [Worker(0)]
        self.failures: list[OSError] = []

    def launch_single_inference_worker(self, api: Any, number: int) -> Worker:
        assert self._workers_per_device_by_api_path[api.api_path] > number, "LitServe looks up the device by number"
        if self.failures:
            raise self.failures.pop()
        return Worker(number)


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def starter(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotStarter]:
    monkeypatch.setattr(slot_starter, "RETRY_SECONDS", 0.0)
    starter = SlotStarter()
    starter.listen(shell)
    yield starter
    starter.close(shell)


def numbers(shell: Shell) -> list[int]:
    return [worker.number for worker in shell.inference_workers]


def test_each_request_starts_the_next_slot(shell: Shell, starter: SlotStarter) -> None:
    starter.request()
    starter.request()
    eventually(lambda: numbers(shell) == [0, 1, 2])
    assert shell._workers_per_device_by_api_path == {"/x": 3}, "LitServe finds dead workers by these counts"


def test_a_failed_start_of_a_slot_is_repeated(shell: Shell, starter: SlotStarter) -> None:
    shell.failures = [OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 2
    starter.request()
    eventually(lambda: numbers(shell) == [0, 1])


def test_after_the_end_no_slot_is_left_or_started(shell: Shell, starter: SlotStarter) -> None:
    starter.request()
    eventually(lambda: numbers(shell) == [0, 1])
    starter.close(shell)
    assert [worker.is_alive() for worker in shell.inference_workers] == [True, False], "LitServe ends the first"
    assert starter._start(shell)
    assert numbers(shell) == [0, 1]
