"""Query the NVIDIA driver without CUDA: name, memory, memory by process.

A device is 'cuda:1', the second of those in CUDA_VISIBLE_DEVICES (NVML counts all in the machine), or the UUID of a GPU
('GPU-…') or of a part of one ('MIG-…').
NVML is opened and closed for each query, because a forked process must not inherit it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

PART = "MIG-"
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
    """There is no GPU that this process may use, or the driver does not answer."""


class GpuLost(NoGpu):
    """The driver no longer reaches the GPU: it fell off the bus, or the part was removed."""


class NoDriver(NoGpu):
    """There is no driver, or no package to query it, so presumably no GPU is to be used."""


def in_order_of_the_bus() -> None:
    """Make CUDA number GPUs as NVML does, here and in later child processes."""
    os.environ.setdefault(ORDER, "PCI_BUS_ID")


def gpu(device: str) -> Gpu:
    """Return facts about a device. Raises NoGpu."""
    with _opened(device) as (nvml, handle):
        return _facts(nvml, handle)


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, in CUDA's order, or their parts if divided (MIG).

    As in CUDA, the list ends at the first invalid entry. Raises NoGpu if it is empty.
    """
    with _library() as nvml:
        visible = os.environ.get(VISIBLE)
        words = list(map(str, range(nvml.nvmlDeviceGetCount()))) if visible is None else visible.split(",")
        gpus: list[Gpu] = []
        for word in words:
            try:
                handle = _named(nvml, word.strip())
                parts = [] if word.strip().startswith(PART) else _mig_parts(nvml, handle)
                gpus += [_facts(nvml, part) for part in parts or [handle]]
            except (NoGpu, nvml.NVMLError):
                if not gpus:
                    raise
                break
        if not gpus:
            raise NoGpu("the NVIDIA driver knows no GPU")
        return tuple(gpus)


def driver() -> str:
    """Return the driver's version. Raises NoGpu."""
    with _library() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion())


def capability(device: str) -> int | None:
    """Return CUDA's compute capability, 90 for 9.0; None if unknown."""
    try:
        with _opened(device) as (nvml, handle):
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except NoGpu:
        return None
    return int(major) * 10 + int(minor)


def index(word: str) -> int:
    """Return the driver's number of the GPU that an entry of CUDA_VISIBLE_DEVICES names. For a part, that of its GPU.

    Raises NoGpu.
    """
    with _library() as nvml:
        handle = _named(nvml, word.strip())
        if word.strip().startswith(PART):
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return int(nvml.nvmlDeviceGetIndex(handle))


def used_by(device: str, processes: Iterable[int]) -> int | None:
    """Return the bytes of these processes on `device`; None if unknown.

    The driver may know a container's processes by other ids than those inside.
    """
    pids = set(processes)
    try:
        with _opened(device) as (nvml, handle):
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            by_process = {process.pid: process.usedGpuMemory for process in running}
    except NoGpu:
        return None
    used = [by_process[pid] for pid in pids & by_process.keys()]
    return None if not used or None in used else sum(map(int, used))


def busy(device: str) -> float | None:
    """Return the share of the last sample period with a running kernel; None if unknown."""
    try:
        with _opened(device) as (nvml, handle):
            return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except NoGpu:
        return None


@contextmanager
def _opened(device: str) -> Iterator[tuple[Any, Any]]:
    with _library() as nvml:
        yield nvml, _handle(nvml, device)


@contextmanager
def _library() -> Iterator[Any]:
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
        yield nvml
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_NotFound) as error:
        raise GpuLost(f"the NVIDIA driver does not reach it any more: {error}") from error
    except nvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not tell: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any, device: str) -> Any:
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return _named(nvml, device)
    index, visible = int(number or 0), os.environ.get(VISIBLE)
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    words = [word.strip() for word in visible.split(",")]
    if index >= len(words):
        raise NoGpu(f"{VISIBLE}={visible} names no GPU number {index}")
    return _named(nvml, words[index])


def _named(nvml: Any, word: str) -> Any:
    """Return the handle for an entry of CUDA_VISIBLE_DEVICES: a number, a UUID, or a GPU UUID's beginning."""
    if word.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(word))
    if word.startswith(PART):
        return nvml.nvmlDeviceGetHandleByUUID(word)
    if not word.startswith("GPU-"):
        raise NoGpu(f"{VISIBLE}: '{word}' is neither the number of a GPU nor a UUID")
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(word):
            return handle
    raise GpuLost(f"no GPU has the UUID {word}")


def _mig_parts(nvml: Any, handle: Any) -> list[Any]:
    """Return the parts of a GPU; empty if it is not divided."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        numbers = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except nvml.NVMLError:
        return []
    parts = []
    for number in numbers:
        with suppress(nvml.NVMLError):  # there are gaps
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return parts


def _facts(nvml: Any, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return Gpu(name, uuid, int(memory.total), int(memory.used))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
