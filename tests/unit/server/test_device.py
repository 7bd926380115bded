"""Detecting the machine's memory, and the budgets of devices and of the host."""

import msgspec
import psutil
import pytest
from pydantic import ByteSize

from models import nvml, process_control
from runtime.config import device

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with 64 GiB of memory, of which the container may use 32, and a GPU of 80 GiB."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 64 * GIB}))
    monkeypatch.setattr(process_control, "memory_limit", lambda: 32 * GIB)
    monkeypatch.setenv(nvml.ORDER, "PCI_BUS_ID")  # so that monkeypatch restores it
    monkeypatch.setattr(nvml, "gpus", lambda: (nvml.Gpu("GPU", "GPU-1", 80 * GIB, GIB),))
    return monkeypatch


def test_a_gpu_has_a_budget_of_host_memory(machine: pytest.MonkeyPatch) -> None:
    result = device.detect("auto", None)
    assert (result.name, result.total, result.host_total) == ("cuda:0", 80 * GIB, 32 * GIB)
    assert result.host_budget == int(32 * GIB * device.SHARE)
    assert device.detect("cuda", 10 * GIB, 20 * GIB).host_budget == 20 * GIB


def test_a_cpu_has_no_separate_host_memory(machine: pytest.MonkeyPatch) -> None:
    result = device.detect("cpu", None)
    assert (result.total, result.host_total, result.host_budget) == (32 * GIB, 0, 0)
    assert [budget.bytes for budget in device.detect("cpu:4", 8 * GIB).budgets] == [2 * GIB] * 4
    with pytest.raises(RuntimeError, match="--device-memory"):
        device.detect("cpu", None, 8 * GIB)


def test_an_explicit_budget_is_a_plain_int() -> None:
    """Settings read sizes as pydantic's ByteSize, which msgspec cannot encode."""
    result = device.detect("cpu", ByteSize(2 * GIB))
    assert [type(budget.bytes) for budget in result.budgets] == [int]
    assert msgspec.json.encode(result.budgets[0].bytes) == b"2147483648"
