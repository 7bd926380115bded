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
from typing import Literal, Protocol, TextIO

import psutil

from models import nvml, process_control
from runtime.config.budgets import DeviceBudget

log = logging.getLogger("roundhouse.device")
CUDA = "cuda:0"
"""The first of the GPUs that the server may use."""

VISIBLE_SHARE = 0.9
"""Share of a model's bytes that must show as free, because engines and the driver measure slightly differently."""
MAX_WAIT_SECONDS, POLL_SECONDS = 10.0, 0.05
"""Seconds that the driver may take to free memory, and seconds between two readings."""


class DeviceMemory(Protocol):
    """The memory of a device, or of several."""

    @property
    def lost(self) -> str:
        """Why the device is lost; '' if it is present."""
        ...

    async def used(self) -> int | None:
        """Return the bytes in use by all processes; None if unknown. Called at heartbeats and departures."""
        ...

    async def back(self, held: int, before: int | None) -> None:
        """Wait until `held` fewer bytes are in use than `before` (None if unknown)."""
        ...


class HostMemory:
    """A CPU's memory, which is free as soon as the process group has ended."""

    lost = ""

    async def used(self) -> None:
        return None

    async def back(self, held: int, before: int | None) -> None:
        return


@dataclass
class _PendingRelease:
    target: float
    """Upper bound on the bytes in use once the memory is freed."""


class GpuMemory:
    """A GPU's memory. The driver frees it with a delay, so the used bytes must be seen to fall.

    If several models leave at the same time, a fall counted for one is not counted for another. Concurrent loads hide a
    fall, so after `MAX_WAIT_SECONDS` the memory is assumed to be free.

    Args:
        read: returns the bytes in use on the device; raises RuntimeError if the driver does not report them.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self._read, self.lost = read, ""
        self._seen: deque[int] = deque(maxlen=2)
        """The last two readings without a departure. Two, because the later one may follow a death not yet noticed."""
        self._leaving: list[_PendingRelease] = []

    async def used(self) -> int | None:
        used = await self._try_read()
        if used is not None and not self._leaving:
            self._seen.append(used)
        return used

    async def back(self, held: int, before: int | None) -> None:
        if before is None:
            before = max(self._seen, default=await self._try_read())
        if before is None:
            return
        release = _PendingRelease(before - VISIBLE_SHARE * held)
        self._leaving.append(release)
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                while True:
                    used = await self._try_read()
                    if used is None or used <= release.target:
                        break
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            log.warning("device memory does not show as freed", extra={"held": held, "before": before})
        finally:
            self._leaving.remove(release)
            for other in self._leaving:
                other.target -= VISIBLE_SHARE * held

    async def _try_read(self) -> int | None:
        try:
            used = await asyncio.to_thread(self._read)
        except RuntimeError as error:
            log.warning("cannot read the device's used memory", extra={"cause": str(error)})
            self.lost = str(error) if isinstance(error, nvml.GpuLost) else self.lost
            return None
        self.lost = ""
        return used


class GroupMemory:
    """The memory of the several devices of one model."""

    def __init__(self, parts: Sequence[DeviceMemory]) -> None:
        self._parts = parts

    @property
    def lost(self) -> str:
        return next((part.lost for part in self._parts if part.lost), "")

    async def used(self) -> int | None:
        readings = [await part.used() for part in self._parts]
        return None if None in readings else sum(reading or 0 for reading in readings)

    async def back(self, held: int, before: int | None) -> None:
        """Wait for an equal part on each device. Each knows best what was in use there before."""
        await asyncio.gather(*(part.back(held // len(self._parts), None) for part in self._parts))


SHARE = 0.85
"""Share of the detected memory for models. The rest is for the gateway, the page cache and other programs."""
LOCKS = Path("/dev/shm")
"""The folder with the lock files by which servers on this machine claim GPUs. Not /tmp, of which a systemd service may
have its own (PrivateTmp)."""


@dataclass(frozen=True, slots=True)
class Device:
    """The server's devices: one, or several of one kind."""

    kind: Literal["cpu", "cuda"]
    name: str
    """Name of the first device for engines: 'cpu' or 'cuda:0'."""
    label: str
    """The product's name, as the key of measurements: 'cpu', 'NVIDIA H200', or '8 × NVIDIA H100'."""
    total: int
    budget: int
    host_total: int = 0
    """Host memory in addition to a GPU; 0 on a CPU, where it is the device itself."""
    host_budget: int = 0
    parts: tuple[DeviceBudget, ...] = ()
    """The devices with their budgets; empty for a single device."""

    @property
    def budgets(self) -> tuple[DeviceBudget, ...]:
        return self.parts or (DeviceBudget(self.name, self.budget, self.label, self.total),)


NO_DEVICE = Device("cpu", "cpu", "none", 0, 0)
"""The device of a front, which has no models."""


def detect(requested: str, memory: int | Sequence[int] | None, host_budget: int | None = None) -> Device:
    """Return the device or devices to serve on.

    Args:
        requested: auto, cpu, cuda, `cuda:GPU-uuid,…` for these GPUs, or `cpu:2` for the CPU as two devices.
        memory: bytes for models; one value for each GPU or for the CPU as a whole, or one per device. None for `SHARE`.
        host_budget: bytes for models in host memory, in addition to GPUs.

    Raises RuntimeError if a requested device is missing, or if the numbers of devices and budgets differ.
    """
    kind, _, which = requested.partition(":")
    given = (int(memory),) if isinstance(memory, int) else tuple(map(int, memory or ()))
    host = min(psutil.virtual_memory().total, process_control.memory_limit() or 1 << 62)
    cards = () if kind == "cpu" else _gpus(kind, tuple(filter(None, which.split(","))))
    if cards:
        on_host = int(host * SHARE if host_budget is None else host_budget)
        return _gpu_device(cards, given, host, on_host, chosen=bool(which))
    if host_budget is not None:
        raise RuntimeError("On a CPU models are in host memory. Use --device-memory instead of --host-memory.")
    return _cpu(int(which or 1), given, host)


def _gpu_device(cards: Sequence[nvml.Gpu], given: Sequence[int], host: int, on_host: int, *, chosen: bool) -> Device:
    bytes_each = _each(given, [int(card.total * SHARE) for card in cards], len(cards))
    total, budget = sum(card.total for card in cards), sum(bytes_each)
    is_part = cards[0].uuid.startswith(nvml.PART)  # by its number the driver would describe the whole GPU
    if len(cards) == 1 and not chosen and not is_part:
        return Device("cuda", CUDA, cards[0].name, total, budget, host, on_host)
    parts = tuple(
        DeviceBudget(f"cuda:{number}", size, card.name, card.total, card.uuid)
        for number, (card, size) in enumerate(zip(cards, bytes_each, strict=True))
    )
    counts = Counter(card.name for card in cards)
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


def _each(given: Sequence[int], default: list[int], count: int) -> list[int]:
    """Return the bytes for each of `count` devices."""
    if len(given) not in (0, 1, count):
        raise RuntimeError(f"--device-memory has {len(given)} sizes for {count} devices: give one, or one for each.")
    return list(given) * (count if len(given) == 1 else 1) or default


def _gpus(requested: str, uuids: Sequence[str]) -> tuple[nvml.Gpu, ...]:
    """Return the GPUs to use; if none can be used, empty after logging the reason."""
    nvml.in_order_of_the_bus()
    try:
        gpus = nvml.gpus()
    except nvml.NoGpu as error:
        if requested == "cuda":
            raise RuntimeError(f"No NVIDIA GPU can be used: {error}. Fix that, or use --device cpu.") from error
        if not isinstance(error, nvml.NoDriver):
            log.warning("no GPU is used: %s", error)
        return ()
    if not uuids:
        return gpus
    known = {card.uuid: card for card in gpus}
    if missing := [uuid for uuid in uuids if uuid not in known]:
        raise RuntimeError(
            f"There is no GPU {', '.join(missing)} that the server may use. Available: {', '.join(known)} "
            "(roundhouse doctor lists them with their names)."
        )
    return tuple(known[uuid] for uuid in dict.fromkeys(uuids))


def claim(device: Device) -> ExitStack:
    """Claim the GPUs against other servers on this machine until the returned stack is closed.

    Raises RuntimeError, naming the GPU and the other server's process, if one is taken.
    """
    with ExitStack() as stack:
        for budget in device.budgets if device.kind == "cuda" else ():
            _claim(budget, stack)
        return stack.pop_all()


def _claim(budget: DeviceBudget, stack: ExitStack) -> None:
    uuid = budget.uuid or nvml.gpu(budget.device).uuid
    try:
        file = stack.enter_context(_lock_file(LOCKS / f"roundhouse-{uuid}.lock"))
    except OSError as error:  # another user's file, which this user may not open
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


def _lock_file(path: Path) -> TextIO:
    """Open a lock file, which all users may write. Raises OSError."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags), "r+")  # with O_CREAT Linux may refuse another user's (protected_regular)
    except FileNotFoundError:
        file = os.fdopen(os.open(path, flags | os.O_CREAT, 0o666), "r+")
        os.fchmod(file.fileno(), 0o666)  # whatever the umask
        return file


def used_of(device: Device, budget: DeviceBudget) -> tuple[int | None, float | None]:
    """Return the bytes in use on one device by all programs, and its load from 0 to 1; None if unknown.

    For a CPU these are the machine's memory, and the load of all its cores since the last call.
    """
    if device.kind == "cpu":
        return psutil.virtual_memory().used, psutil.cpu_percent() / 100
    try:
        return nvml.gpu(budget.driver_name).used, nvml.busy(budget.driver_name)
    except nvml.NoGpu:
        return None, None


def machine_total(device: Device, budget: DeviceBudget) -> int:
    """Return the bytes of one device; for a CPU those of the machine, regardless of a container's limit."""
    return psutil.virtual_memory().total if device.kind == "cpu" else budget.total


def memories_of(device: Device) -> dict[str, DeviceMemory]:
    if device.kind == "cpu":
        return {budget.device: HostMemory() for budget in device.budgets}
    return {b.device: GpuMemory(partial(_used, b.driver_name)) for b in device.budgets}


def _used(name: str) -> int:
    return nvml.gpu(name).used
