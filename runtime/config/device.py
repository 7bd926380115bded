"""The device that models run on: budget, memory, and how freed memory is seen."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from models import nvml, process_control

log = logging.getLogger("roundhouse.device")

VISIBLE_SHARE = 0.9
"""Share of what a model held that must show as free: the figures of engines and of the driver differ by a little."""
MAX_WAIT_SECONDS, POLL_SECONDS = 10.0, 0.05
"""Seconds that the driver may take, and between two looks."""


class DeviceMemory(Protocol):
    async def used(self) -> int | None:
        """Bytes in use by all processes; None: unknown. Read at heartbeats and departures."""
        ...

    async def back(self, held: int, before: int | None) -> None:
        """Wait until `held` bytes fewer are in use than `before`; None: unknown."""
        ...


class HostMemory:
    """On a CPU the end of the process group proves that its memory is back."""

    async def used(self) -> None:
        return None

    async def back(self, held: int, before: int | None) -> None:
        return


@dataclass
class _PendingRelease:
    target: float
    """In use, at most, when its bytes are back."""


class GpuMemory:
    """On a GPU used bytes must be seen to fall: the driver frees memory later.

    What leaves at the same time is counted once: a fall that was counted for one is not counted for another. Loads
    meanwhile hide a fall, so after `MAX_WAIT_SECONDS` seconds it is taken as given.

    Args:
        read: bytes in use on the device; RuntimeError where the driver does not tell.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._seen: deque[int] = deque(maxlen=2)
        """The last two looks while nothing left: the later one may come after a death that is not known yet."""
        self._leaving: list[_PendingRelease] = []

    async def used(self) -> int | None:
        used = await self._look()
        if used is not None and not self._leaving:
            self._seen.append(used)
        return used

    async def back(self, held: int, before: int | None) -> None:
        if before is None:
            before = max(self._seen, default=await self._look())
        if before is None:
            return
        mine = _PendingRelease(before - VISIBLE_SHARE * held)
        self._leaving.append(mine)
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                while True:
                    used = await self._look()
                    if used is None or used <= mine.target:
                        break
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            log.warning("memory is not seen to be back", extra={"held": held, "before": before})
        finally:
            self._leaving.remove(mine)
            for other in self._leaving:
                other.target -= VISIBLE_SHARE * held

    async def _look(self) -> int | None:
        try:
            return await asyncio.to_thread(self._read)
        except RuntimeError as error:
            log.warning("the device's memory is not known", extra={"cause": str(error)})
            return None


CUDA = "cuda:0"
"""The first of the GPUs in CUDA_VISIBLE_DEVICES."""
SHARE = 0.85
"""Share of the detected memory for models. The gateway, the page cache and other programs get the rest."""


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """Bytes for models on a device, or on one of several parts of a CPU."""

    device: str
    """'cpu' or 'cuda:0', as engines take it; 'cpu:1' for a part."""
    bytes: int

    @property
    def engine_device(self) -> str:
        """The device as engines take it: every part of a CPU is the CPU."""
        return "cpu" if self.device.startswith("cpu:") else self.device


@dataclass(frozen=True, slots=True)
class Device:
    kind: Literal["cpu", "cuda"]
    name: str
    """'cpu' or 'cuda:0', as engines take it."""
    label: str
    """The product's name, for measured figures: 'cpu' or 'NVIDIA H200'."""
    total: int
    budget: int
    host_total: int = 0
    """Host memory beside a GPU; 0 on a CPU, where models live in it."""
    host_budget: int = 0
    parts: int = 1
    """Number of devices that it is served as, with equal shares of the budget."""

    @property
    def budgets(self) -> tuple[DeviceBudget, ...]:
        if self.parts == 1:
            return (DeviceBudget(self.name, self.budget),)
        return tuple(DeviceBudget(f"{self.name}:{part}", self.budget // self.parts) for part in range(self.parts))


def detect(requested: str, budget: int | None, host_budget: int | None = None) -> Device:
    """The device to serve on. Raises RuntimeError if a requested GPU is not usable.

    wanted: auto, cpu, cuda, or cpu:2 for the CPU as two devices.
    """
    requested, _, parts = requested.partition(":")
    memory = min(psutil.virtual_memory().total, process_control.memory_limit() or 1 << 62)
    gpu = None if requested == "cpu" else _gpu(requested)
    if gpu is not None:
        label, total = gpu
        on_host = int(memory * SHARE if host_budget is None else host_budget)
        return Device("cuda", CUDA, label, total, int(budget or total * SHARE), memory, on_host)
    if host_budget is not None:
        raise RuntimeError("On a CPU models live in host memory: give --device-memory instead of --host-memory.")
    return Device("cpu", "cpu", "cpu", memory, int(budget or memory * SHARE), parts=int(parts or 1))


def _gpu(requested: str = "auto") -> tuple[str, int] | None:
    """Its name and bytes; None: no usable one, and the log says why."""
    nvml.in_order_of_the_bus()
    try:
        result = nvml.gpu(CUDA)
    except nvml.NoGpu as error:
        if requested == "cuda":
            raise RuntimeError(f"No NVIDIA GPU can be used: {error}. Mend that, or use --device cpu.") from error
        if not isinstance(error, nvml.NoDriver):
            log.warning("no GPU is used: %s", error)
        return None
    return result.name, result.total


def machine_total(device: Device) -> int:
    """Bytes of the machine, whatever a container's limit is."""
    return psutil.virtual_memory().total if device.kind == "cpu" else device.total


def used_of(device: Device) -> tuple[int | None, float | None]:
    """Bytes in use there by all programs, and its load from 0 to 1; None if unknown.

    Of a CPU: this machine's memory, and all its cores since the last call.
    """
    if device.kind == "cpu":
        return psutil.virtual_memory().used, psutil.cpu_percent() / 100
    try:
        return nvml.gpu(device.name).used, nvml.busy(device.name)
    except nvml.NoGpu:
        return None, None


def memory_of(device: Device) -> DeviceMemory:
    """How memory that comes back is seen there."""
    return HostMemory() if device.kind == "cpu" else GpuMemory(lambda: nvml.gpu(device.name).used)
