"""The devices that models run on: budgets, memory, and checks that memory was freed."""

import asyncio
import fcntl
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import psutil

from models import nvml, process_control
from runtime.config.budgets import DeviceBudget

log = logging.getLogger("roundhouse.device")
CUDA = "cuda:0"
"""The first of the GPUs that the server may use."""

VISIBLE_SHARE = 0.9
"""Share of what a model held that must show as free: the figures of engines and of the driver differ by a little."""
MAX_WAIT_SECONDS, POLL_SECONDS = 10.0, 0.05
"""Seconds that the driver may take, and between two looks."""


class DeviceMemory(Protocol):
    @property
    def lost(self) -> str:
        """The reason why the device is gone; empty: it is there."""
        ...

    async def used(self) -> int | None:
        """Bytes in use by all processes; None: unknown. Read at heartbeats and departures."""
        ...

    async def back(self, held: int, before: int | None) -> None:
        """Wait until `held` bytes fewer are in use than `before`; None: unknown."""
        ...


class HostMemory:
    """A CPU's memory. The end of the process group proves that it is back."""

    lost = ""

    async def used(self) -> None:
        return None

    async def back(self, held: int, before: int | None) -> None:
        return


@dataclass
class _PendingRelease:
    target: float
    """The most bytes in use once its memory is back."""


class GpuMemory:
    """A GPU's memory. Used bytes must be seen to fall: the driver frees memory later.

    What leaves at the same time is counted once: a fall that was counted for one is not counted for another. Loads
    meanwhile hide a fall, so after `MAX_WAIT_SECONDS` seconds it is taken as given.

    Args:
        read: bytes in use on the device; RuntimeError where the driver does not tell.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self._read, self.lost = read, ""
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
            used = await asyncio.to_thread(self._read)
        except RuntimeError as error:
            log.warning("the device's memory is not known", extra={"cause": str(error)})
            self.lost = str(error) if isinstance(error, nvml.GpuLost) else self.lost
            return None
        self.lost = ""
        return used


class GroupMemory:
    """The memory of several devices that one model is spread over."""

    def __init__(self, parts: Sequence[DeviceMemory]) -> None:
        self._parts = parts

    @property
    def lost(self) -> str:
        return next((part.lost for part in self._parts if part.lost), "")

    async def used(self) -> int | None:
        looks = [await part.used() for part in self._parts]
        return None if None in looks else sum(look or 0 for look in looks)

    async def back(self, held: int, before: int | None) -> None:
        """Wait for an equal part on each device, which knows best what was in use there before."""
        await asyncio.gather(*(part.back(held // len(self._parts), None) for part in self._parts))


SHARE = 0.85
"""Share of the detected memory for models. The gateway, the page cache and other programs get the rest."""
LOCKS = Path("/tmp")
"""The folder in which servers of this machine claim GPUs."""


@dataclass(frozen=True, slots=True)
class Device:
    """The server's devices: one, or several of one kind."""

    kind: Literal["cpu", "cuda"]
    name: str
    """'cpu' or 'cuda:0', as engines take it; of several the first."""
    label: str
    """The product's name, for measured figures: 'cpu' or 'NVIDIA H200'; '8 × NVIDIA H100' of several."""
    total: int
    budget: int
    host_total: int = 0
    """Host memory beside a GPU; 0 on a CPU, where models live in it."""
    host_budget: int = 0
    parts: tuple[DeviceBudget, ...] = ()
    """Devices with a budget each; empty: it is one."""

    @property
    def budgets(self) -> tuple[DeviceBudget, ...]:
        return self.parts or (DeviceBudget(self.name, self.budget, self.label, self.total),)


NO_DEVICE = Device("cpu", "cpu", "none", 0, 0)
"""The device of a front, which has no models."""


def detect(requested: str, memory: int | Sequence[int] | None, host_budget: int | None = None) -> Device:
    """The device or devices to serve on.

    Args:
        requested: auto, cpu, cuda, `cuda:GPU-uuid,…` for these GPUs, or `cpu:2` for the CPU as two devices.
        memory: bytes for models, of each GPU or one each; of a CPU together or one for each part. None: a share.
        host_budget: bytes for models in host memory beside GPUs.

    Raises RuntimeError for what is not there, or where the numbers of devices and budgets differ.
    """
    kind, _, which = requested.partition(":")
    given = (int(memory),) if isinstance(memory, int) else tuple(map(int, memory or ()))
    host = min(psutil.virtual_memory().total, process_control.memory_limit() or 1 << 62)
    found = () if kind == "cpu" else _gpus(kind, tuple(filter(None, which.split(","))))
    if found:
        on_host = int(host * SHARE if host_budget is None else host_budget)
        return _cards(found, given, host, on_host, chosen=bool(which))
    if host_budget is not None:
        raise RuntimeError("On a CPU models live in host memory: give --device-memory instead of --host-memory.")
    return _cpu(int(which or 1), given, host)


def _cards(found: Sequence[nvml.Gpu], given: Sequence[int], host: int, on_host: int, *, chosen: bool) -> Device:
    bytes_each = _each(given, [int(card.total * SHARE) for card in found], len(found))
    total, budget = sum(card.total for card in found), sum(bytes_each)
    if len(found) == 1 and not chosen:
        return Device("cuda", CUDA, found[0].name, total, budget, host, on_host)
    parts = tuple(
        DeviceBudget(f"cuda:{number}", size, card.name, card.total, card.uuid)
        for number, (card, size) in enumerate(zip(found, bytes_each, strict=True))
    )
    counts = Counter(card.name for card in found)
    label = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
    return Device("cuda", CUDA, label, total, budget, host, on_host, parts)


def _cpu(parts: int, given: Sequence[int], total: int) -> Device:
    together = given[0] if len(given) == 1 else int(total * SHARE)
    bytes_each = _each(given if len(given) > 1 else (), [together // parts] * parts, parts)
    if parts == 1:
        return Device("cpu", "cpu", "cpu", total, bytes_each[0])
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // parts
    label = f"cpu 1/{parts}" if share else "cpu"
    split = tuple(
        DeviceBudget(
            f"cpu:{number}", size, label, total // parts, cores=tuple(cores[number * share : (number + 1) * share])
        )
        for number, size in enumerate(bytes_each)
    )
    return Device("cpu", "cpu", "cpu", total, sum(bytes_each), parts=split)


def _each(given: Sequence[int], usual: list[int], count: int) -> list[int]:
    """Bytes for each of `count` devices."""
    if len(given) not in (0, 1, count):
        raise RuntimeError(f"--device-memory has {len(given)} sizes for {count} devices: give one, or one for each.")
    return list(given) * (count if len(given) == 1 else 1) or usual


def _gpus(requested: str, uuids: Sequence[str]) -> tuple[nvml.Gpu, ...]:
    """The GPUs to use; empty: none can be used, and the log says why."""
    nvml.in_order_of_the_bus()
    try:
        found = nvml.gpus()
    except nvml.NoGpu as error:
        if requested == "cuda":
            raise RuntimeError(f"No NVIDIA GPU can be used: {error}. Mend that, or use --device cpu.") from error
        if not isinstance(error, nvml.NoDriver):
            log.warning("no GPU is used: %s", error)
        return ()
    if not uuids:
        return found
    known = {card.uuid: card for card in found}
    if missing := [uuid for uuid in uuids if uuid not in known]:
        raise RuntimeError(
            f"There is no GPU {', '.join(missing)} that the server may use. There are: {', '.join(known)} "
            "(roundhouse doctor lists them with their names)."
        )
    return tuple(known[uuid] for uuid in dict.fromkeys(uuids))


def claim(device: Device) -> ExitStack:
    """Keep other servers of this machine off the GPUs until what is returned is closed.

    Raises RuntimeError that names the GPU and the other server's process.
    """
    with ExitStack() as stack:
        for budget in device.budgets if device.kind == "cuda" else ():
            _claim(budget, stack)
        return stack.pop_all()


def _claim(budget: DeviceBudget, stack: ExitStack) -> None:
    uuid = budget.uuid or nvml.gpu(budget.device).uuid
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = stack.enter_context(os.fdopen(os.open(LOCKS / f"roundhouse-{uuid}.lock", flags, 0o666), "r+"))
    except OSError as error:  # another user's file, which this one may not open
        log.warning("cannot tell whether another server uses this GPU", extra={"gpu": uuid, "cause": str(error)})
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = file.read().strip() or "unknown"
        raise RuntimeError(
            f"GPU {uuid} ({budget.device}) is used by another Roundhouse, process {owner}: "
            "stop that one, or give each its own GPUs with --device cuda:UUID."
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


def used_of(device: Device, budget: DeviceBudget) -> tuple[int | None, float | None]:
    """Bytes in use on one device by all programs, and its load from 0 to 1; None if unknown.

    Of a CPU: this machine's memory, and all its cores since the last call.
    """
    if device.kind == "cpu":
        return psutil.virtual_memory().used, psutil.cpu_percent() / 100
    try:
        return nvml.gpu(budget.driver_name).used, nvml.busy(budget.driver_name)
    except nvml.NoGpu:
        return None, None


def machine_total(device: Device, budget: DeviceBudget) -> int:
    """Bytes of one device; of a CPU those of the machine, whatever a container's limit is."""
    return psutil.virtual_memory().total if device.kind == "cpu" else budget.total


def memories_of(device: Device) -> dict[str, DeviceMemory]:
    """A check per device that freed memory has come back."""
    if device.kind == "cpu":
        return {budget.device: HostMemory() for budget in device.budgets}
    return {b.device: GpuMemory(partial(_used, b.driver_name)) for b in device.budgets}


def _used(name: str) -> int:
    return nvml.gpu(name).used
