"""Facts from the NVIDIA driver without CUDA: name, bytes, bytes by process.

NVML counts all GPUs of the machine, CUDA those that CUDA_VISIBLE_DEVICES names; a device of ours ('cuda:0') is CUDA's
first. NVML is opened for each question and closed again: a process that is forked must not inherit it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ORDER, VISIBLE = "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    uuid: str
    total: int
    """Bytes."""
    used: int
    """Bytes of all processes."""


class NoGpu(RuntimeError):
    """No GPU that this process may use, or the driver does not answer."""


class NoDriver(NoGpu):
    """No driver or no package to query it: no GPU is meant to be used here."""


def in_order_of_the_bus() -> None:
    """Have CUDA number GPUs as NVML does, here and in later child processes."""
    os.environ.setdefault(ORDER, "PCI_BUS_ID")


def gpu(device: str) -> Gpu:
    """Facts about `device` ('cuda:0'). Raises NoGpu."""
    with _opened(device) as (nvml, handle):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
        return Gpu(name, uuid, int(memory.total), int(memory.used))


def driver() -> str:
    """The driver's version. Raises NoGpu."""
    with _opened("cuda:0") as (nvml, _):
        return _text(nvml.nvmlSystemGetDriverVersion())


def capability(device: str) -> int | None:
    """CUDA's compute capability, 90 for 9.0; None where the driver does not tell."""
    try:
        with _opened(device) as (nvml, handle):
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except NoGpu:
        return None
    return int(major) * 10 + int(minor)


def used_by(device: str, processes: Iterable[int]) -> int | None:
    """Bytes of these processes on `device`; None: the driver does not say.

    It may count a container's processes by numbers that they do not have inside.
    """
    pids = set(processes)
    try:
        with _opened(device) as (nvml, handle):
            by_process = {one.pid: one.usedGpuMemory for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except NoGpu:
        return None
    used = [by_process[pid] for pid in pids & by_process.keys()]
    return None if not used or None in used else sum(map(int, used))


def busy(device: str) -> float | None:
    """Share of the last sample period with a running kernel; None: unknown."""
    try:
        with _opened(device) as (nvml, handle):
            return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except NoGpu:
        return None


@contextmanager
def _opened(device: str) -> Iterator[tuple[Any, Any]]:
    try:
        import pynvml as nvml
    except ImportError as error:
        raise NoDriver("the package nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound as error:
        raise NoDriver("no NVIDIA driver is installed") from error
    except nvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not answer: {error}") from error
    try:
        yield nvml, _handle(nvml, int(device.partition(":")[2] or 0))
    except nvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not tell: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any, index: int) -> Any:
    """NVML's handle of CUDA's `index`-th GPU."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    words = [word.strip() for word in visible.split(",")]
    if index >= len(words):
        raise NoGpu(f"{VISIBLE}={visible} names no GPU number {index}")
    word = words[index]
    if word.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(word))
    if not word.startswith("GPU-"):
        raise NoGpu(f"{VISIBLE}={visible}: '{word}' is neither the number of a GPU nor its UUID")
    for number in range(nvml.nvmlDeviceGetCount()):  # CUDA takes the beginning of a UUID, too
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(word):
            return handle
    raise NoGpu(f"{VISIBLE}={visible}: no GPU has the UUID {word}")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
