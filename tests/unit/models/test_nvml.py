"""Which GPU is CUDA's, and whose bytes lie there, by a driver that is made up."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from models import nvml
from runtime.config.device import Device, detect, machine_total, used_of

GIB = 2**30


class Nvml:
    """Two GPUs as NVML counts them; `open` counts how often it is open."""

    class NVMLError(Exception):
        """As pynvml has it."""

    class NVMLError_LibraryNotFound(NVMLError):
        """Of pynvml, too."""

    def __init__(self) -> None:
        self.open, self.broken, self.installed = 0, False, True
        self.processes: dict[int, list[Any]] = {0: [], 1: []}

    def nvmlInit(self) -> None:
        if not self.installed:
            raise self.NVMLError_LibraryNotFound("NVML Shared Library Not Found")
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        assert self.open == 1
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return ("GPU-aaaa-1", "GPU-bbbb-2")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * GIB, used=(1 + handle) * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return self.processes[handle]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=25 * (1 + handle))

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)  # type: ignore[arg-type]
    monkeypatch.delenv(nvml.VISIBLE, raising=False)
    return made


@pytest.mark.parametrize(
    ("visible", "device", "uuid"),
    [
        (None, "cuda:0", "GPU-aaaa-1"),
        (None, "cuda", "GPU-aaaa-1"),
        (None, "cuda:1", "GPU-bbbb-2"),
        ("1", "cuda:0", "GPU-bbbb-2"),
        ("1,0", "cuda:1", "GPU-aaaa-1"),
        (" GPU-bbbb-2 ", "cuda:0", "GPU-bbbb-2"),
        ("GPU-bb", "cuda:0", "GPU-bbbb-2"),
    ],
)
def test_a_device_is_the_one_that_cuda_sees(
    visible: str | None, device: str, uuid: str, driver: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv(nvml.VISIBLE, visible)
    found = nvml.gpu(device)
    assert (found.uuid, found.name, found.total) == (uuid, "NVIDIA H100", 80 * GIB)
    assert driver.open == 0, "closed again: a fork must not inherit it"


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-cc", "MIG-1"])
def test_a_gpu_that_is_hidden_is_none(visible: str, driver: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nvml.VISIBLE, visible)
    with pytest.raises(nvml.NoGpu):
        nvml.gpu("cuda:0")
    assert driver.open == 0


def test_bytes_are_those_of_the_processes(driver: Nvml) -> None:
    driver.processes[0] = [SimpleNamespace(pid=pid, usedGpuMemory=pid * GIB) for pid in (3, 4, 5)]
    assert nvml.used_by("cuda:0", [3, 5]) == 8 * GIB
    assert nvml.used_by("cuda:0", [9]) is None, "a container's numbers are not the machine's"
    driver.processes[0][0].usedGpuMemory = None
    assert nvml.used_by("cuda:0", [3, 5]) is None
    driver.broken = True
    assert nvml.used_by("cuda:0", [4]) is None


def test_a_missing_driver_and_a_missing_package_are_named(driver: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml.driver() == "580.65.06"
    driver.broken = True
    with pytest.raises(nvml.NoGpu, match="Driver Not Loaded"):
        nvml.driver()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml.NoGpu, match="nvidia-ml-py"):
        nvml.gpu("cuda:0")


def test_an_unusable_gpu_is_reported_and_an_absent_one_is_not(
    driver: Nvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "roundhouse.device")  # whatever a test before has said of all of ours
    monkeypatch.setenv(nvml.ORDER, "PCI_BUS_ID")  # else it would be set for good
    monkeypatch.setenv(nvml.VISIBLE, "MIG-1")
    with pytest.raises(RuntimeError, match="'MIG-1' is neither"):
        detect("cuda", None)
    assert detect("auto", None).kind == "cpu"
    assert "'MIG-1' is neither" in caplog.text
    caplog.clear()
    driver.installed = False
    assert detect("auto", None).kind == "cpu"
    assert detect("cpu", None).kind == "cpu"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert detect("auto", None).kind == "cpu"
    assert not caplog.text
    with pytest.raises(RuntimeError, match="nvidia-ml-py"):
        detect("cuda", None)


def test_how_busy_a_gpu_is_and_what_is_used_of_it(driver: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Device("cuda", "cuda:0", "NVIDIA H100", 80 * GIB, 60 * GIB)
    assert nvml.busy("cuda:0") == 0.25
    assert used_of(card) == (GIB, 0.25)
    assert machine_total(card) == 80 * GIB
    monkeypatch.setenv(nvml.VISIBLE, "1")
    assert used_of(card) == (2 * GIB, 0.5)
    monkeypatch.setenv(nvml.VISIBLE, "7")
    assert used_of(card) == (None, None)
    assert driver.open == 0


def test_without_a_gpu_it_is_this_machines_memory_and_cores() -> None:
    host = Device("cpu", "cpu", "cpu", GIB, GIB)
    used, busy = used_of(host)
    assert used is not None
    assert 0 < used < machine_total(host)
    assert busy is not None
    assert 0 <= busy <= 1
