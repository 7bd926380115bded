"""Memory budgets in bytes per device, for the policies. Imports nothing."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """A device that models run on: a GPU, a part of one (MIG), the CPU, or a part of it."""

    device: str
    """'cpu', 'cpu:1' for a part, or 'cuda:0', numbered as in CUDA among the devices that the server may use."""
    bytes: int
    label: str = ""
    """The product's name, as the key of measurements: 'cpu' or 'NVIDIA H200'."""
    total: int = 0
    """The device's memory in bytes."""
    uuid: str = ""
    """The only device that an engine may see; '' for those that the server sees."""
    cores: tuple[int, ...] = ()
    """The cores of a part of a CPU; empty for all."""

    @property
    def number(self) -> int:
        """The device's index on the server."""
        return int(self.device.rpartition(":")[2]) if ":" in self.device else 0

    @property
    def engine_device(self) -> str:
        """The device's name for engines. Each part of a CPU is 'cpu'; a GPU visible alone is 'cuda:0'."""
        if self.device.startswith("cpu:"):
            return "cpu"
        return "cuda:0" if self.uuid else self.device

    @property
    def driver_name(self) -> str:
        """The driver's name for the device, for `models.nvml`."""
        return self.uuid or self.device


Group = tuple[DeviceBudget, ...]
"""The devices of one model; usually one."""


def groups(budgets: Sequence[DeviceBudget], size: int) -> list[Group]:
    """Return the sets of `size` devices that a model may use: 0-1, 2-3, ... of two, 0-3, 4-7, ... of four.

    Only adjacent devices starting at a multiple of the size: such sets never overlap partly, and on most machines they
    have the fastest links.
    """
    if size == 1:
        return [(budget,) for budget in budgets]
    by_number = {budget.number: budget for budget in budgets}
    starts = range(0, max(by_number, default=0) + 1, size)
    wholes = (range(start, start + size) for start in starts)
    return [tuple(by_number[n] for n in whole) for whole in wholes if all(n in by_number for n in whole)]
