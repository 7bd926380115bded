"""Bytes for models, device by device: what policies plan with. Imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """A device that models run on: a GPU, a part of one (MIG), the CPU, or a part of it."""

    device: str
    """'cpu', 'cpu:1' for a part, or 'cuda:0', counted as CUDA counts those that the server may use."""
    bytes: int
    label: str = ""
    """The product's name, for measured figures: 'cpu' or 'NVIDIA H200'."""
    total: int = 0
    """Bytes that there are."""
    uuid: str = ""
    """What an engine may see alone; empty: whatever the server sees."""
    cores: tuple[int, ...] = ()
    """Of a part of a CPU: its own; empty: all."""

    @property
    def engine_device(self) -> str:
        """The device as engines take it: every part of a CPU is the CPU, and a GPU that is seen alone is the first."""
        if self.device.startswith("cpu:"):
            return "cpu"
        return "cuda:0" if self.uuid else self.device

    @property
    def driver_name(self) -> str:
        """As `models.nvml` finds it."""
        return self.uuid or self.device
