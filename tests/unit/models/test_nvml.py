"""Which GPU is CUDA's, and whose bytes lie there, by a driver that is made up."""

import errno
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models import nvml
from runtime.config import device
from runtime.config.device import Device, claim, detect, machine_total, memories_of, used_of

GIB = 2**30


class Nvml:
    """Two GPUs as NVML counts them; `open` counts how often it is open. `parts`: of the second one."""

    class NVMLError(Exception):
        """As pynvml has it."""

    class NVMLError_LibraryNotFound(NVMLError):
        """pynvml has it, too."""

    class NVMLError_GpuIsLost(NVMLError):
        """pynvml has it, too."""

    class NVMLError_NotFound(NVMLError):
        """pynvml has it, too."""

    def __init__(self) -> None:
        self.open, self.broken, self.installed = 0, False, True
        self.parts: dict[int, str] = {}
        self.lost: set[int] = set()
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

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        for number, name in self.parts.items():
            if name == uuid:
                return 10 + number
        raise self.NVMLError_NotFound("Not Found")

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if handle == 0:
            raise self.NVMLError("Not Supported")
        return [int(bool(self.parts))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        if index not in self.parts:
            raise self.NVMLError_NotFound("Not Found")
        return 10 + index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100 MIG 1g.10gb" if handle >= 10 else b"NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.parts[handle - 10] if handle >= 10 else ("GPU-aaaa-1", "GPU-bbbb-2")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle in self.lost:
            raise self.NVMLError_GpuIsLost("GPU is lost")
        if handle == 1 and self.parts:
            raise self.NVMLError("Insufficient Permissions")
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


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-cc", "MIG-1", "first"])
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
    monkeypatch.setenv(nvml.VISIBLE, "first")
    with pytest.raises(RuntimeError, match="'first' is neither"):
        detect("cuda", None)
    assert detect("auto", None).kind == "cpu"
    assert "'first' is neither" in caplog.text
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
    (budget,) = card.budgets
    assert nvml.busy("cuda:0") == 0.25
    assert used_of(card, budget) == (GIB, 0.25)
    assert machine_total(card, budget) == 80 * GIB
    monkeypatch.setenv(nvml.VISIBLE, "1")
    assert used_of(card, budget) == (2 * GIB, 0.5)
    monkeypatch.setenv(nvml.VISIBLE, "7")
    assert used_of(card, budget) == (None, None)
    assert driver.open == 0


def test_without_a_gpu_it_is_this_machines_memory_and_cores() -> None:
    host = Device("cpu", "cpu", "cpu", GIB, GIB)
    (budget,) = host.budgets
    used, busy = used_of(host, budget)
    assert used is not None
    assert 0 < used < machine_total(host, budget)
    assert busy is not None
    assert 0 <= busy <= 1


def test_a_server_has_all_gpus_that_it_may_see(driver: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [card.uuid for card in nvml.gpus()] == ["GPU-aaaa-1", "GPU-bbbb-2"]
    both = detect("auto", 10 * GIB)
    assert [(b.device, b.uuid, b.bytes) for b in both.budgets] == [
        ("cuda:0", "GPU-aaaa-1", 10 * GIB),
        ("cuda:1", "GPU-bbbb-2", 10 * GIB),
    ]
    assert {b.engine_device for b in both.budgets} == {"cuda:0"}, "each engine sees one GPU, its first"
    assert (both.label, both.budget, both.total) == ("2 × NVIDIA H100", 20 * GIB, 160 * GIB)
    assert [used_of(both, b)[0] for b in both.budgets] == [GIB, 2 * GIB]
    second = detect("cuda:GPU-bbbb-2", [30 * GIB])
    assert [(b.device, b.driver_name, b.bytes) for b in second.budgets] == [("cuda:0", "GPU-bbbb-2", 30 * GIB)]
    monkeypatch.setenv(nvml.VISIBLE, "1,7,0")
    assert [card.uuid for card in nvml.gpus()] == ["GPU-bbbb-2"], "as CUDA: the list ends where it names none"
    with pytest.raises(RuntimeError, match=r"no GPU GPU-aaaa-1 .* Available: GPU-bbbb-2"):
        detect("cuda:GPU-aaaa-1", None)
    assert driver.open == 0


def test_parts_of_a_gpu_are_devices(driver: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.parts = {0: "MIG-x", 3: "MIG-y"}
    assert [b.uuid for b in detect("auto", None).budgets] == ["GPU-aaaa-1", "MIG-x", "MIG-y"]
    monkeypatch.setenv(nvml.VISIBLE, "MIG-y")
    assert nvml.gpu("cuda:0").uuid == "MIG-y"
    assert [card.uuid for card in nvml.gpus()] == ["MIG-y"]


def test_the_only_part_of_a_gpu_goes_by_its_own_name(
    driver: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container: the driver does not tell it of the whole GPU, and the server did not start."""
    monkeypatch.setattr(device, "LOCKS", tmp_path)
    monkeypatch.setenv(nvml.VISIBLE, "1")
    driver.parts = {3: "MIG-y"}
    part = detect("auto", None)
    (budget,) = part.budgets
    assert (budget.device, budget.uuid, budget.engine_device) == ("cuda:0", "MIG-y", "cuda:0")
    assert used_of(part, budget)[0] == 14 * GIB
    with claim(part):
        assert [file.name for file in tmp_path.iterdir()] == ["roundhouse-MIG-y.lock"]


async def test_a_gpu_that_is_gone_is_no_driver_that_does_not_answer(driver: Nvml) -> None:
    memory = memories_of(detect("auto", None))["cuda:1"]
    assert (await memory.used(), memory.lost) == (2 * GIB, "")
    driver.broken = True
    assert (await memory.used(), memory.lost) == (None, "")
    driver.broken, driver.lost = False, {1}
    assert await memory.used() is None
    assert "GPU is lost" in memory.lost
    driver.lost = set()
    assert (await memory.used(), memory.lost) == (2 * GIB, "")


def test_two_servers_do_not_share_a_gpu(driver: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "LOCKS", tmp_path)
    with claim(detect("cuda:GPU-aaaa-1", None)):
        with pytest.raises(RuntimeError, match=rf"GPU-aaaa-1 .*process {os.getpid()}.*--device cuda:UUID"):
            claim(detect("auto", None))
        with claim(detect("cuda:GPU-bbbb-2", None)), claim(detect("cpu", None)):
            pass
    with claim(detect("auto", None)):
        assert len(list(tmp_path.iterdir())) == 2


def test_servers_of_other_users_and_services_do_not_share_a_gpu_either(
    driver: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A systemd service has a /tmp of its own, and Linux lets nobody open another's file there with O_CREAT."""
    assert "PrivateTmp=yes" in (Path(__file__).parents[3] / "deploy" / "roundhouse.service").read_text()
    assert "tmp" not in device.LOCKS.parts
    stock = os.open

    def protected(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and path.exists():
            raise PermissionError(errno.EACCES, "fs.protected_regular")
        return stock(path, flags, mode)

    monkeypatch.setattr(device, "LOCKS", tmp_path)
    monkeypatch.setattr(os, "open", protected)
    selected = detect("cuda:GPU-aaaa-1", None)
    for _ in range(2):
        with claim(selected):
            (file,) = tmp_path.iterdir()
            assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{os.getpid()}\n", 0o666)
            with pytest.raises(RuntimeError, match="is used by another Roundhouse"):
                claim(selected)
