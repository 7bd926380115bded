"""Put a model on a GPU to sleep: move its tensors to pinned host memory and back.

The tensor objects stay and only their storage moves, so references to the model remain valid.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from models.messages import MemoryFootprint
from models.text.loading import resident_bytes
from registry.errors import EngineFailed

TOLERANCE = 1e-3
"""Largest difference between a known input's values before a sleep and after the wake-up."""
CONTEXT = 1 << 29
"""Bytes of a CUDA context, which stays on the device."""

KnownAnswer = Callable[[], Awaitable[npt.NDArray[np.float32]]]


class ParkedWeights:
    """A torch module's parameters and buffers. `device`: where they are while awake."""

    def __init__(self, module: Any, device: str) -> None:
        self._module, self._device = module, device

    @property
    def host_bytes(self) -> int:
        """Return the bytes of host memory that they take while parked: torch pins blocks of powers of two."""
        return sum(1 << (tensor.nbytes - 1).bit_length() for tensor in self._tensors() if tensor.nbytes)

    def park(self) -> None:
        """Move tensors to host memory, which is pinned if the device is a GPU."""
        import torch

        pinned = self._device != "cpu"
        for tensor in self._tensors():
            tensor.data = torch.empty_like(tensor.data, device="cpu", pin_memory=pinned).copy_(tensor.data)
        self._release()

    def unpark(self) -> None:
        import torch

        for tensor in self._tensors():
            tensor.data = torch.empty_like(tensor.data, device=self._device).copy_(tensor.data, non_blocking=True)
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)

    def _tensors(self) -> list[Any]:
        return [*self._module.parameters(), *self._module.buffers()]  # each once, also when tied

    def _release(self) -> None:
        import torch

        gc.collect()
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()


class Captured(Protocol):
    """Captured graphs, which read the weights in place and grow while the model serves."""

    @property
    def bytes_left(self) -> int:
        """Bytes that they may still use on the device."""

    def clear(self) -> None:
        """Drop all graphs."""


class ModuleSleeper:
    """Puts a model to sleep and wakes it.

    Args:
        module: the loaded model.
        device: where it is while awake.
        known: returns the engine's answer to a known input.
        captured: cleared before the weights move.
    """

    def __init__(self, module: Any, device: str, known: KnownAnswer, captured: Captured | None) -> None:
        self._parked, self._device, self._known = ParkedWeights(module, device), device, known
        self._captured = captured
        self._base = psutil.Process().memory_info().rss
        self._before: npt.NDArray[np.float32] | None = None

    def expected(self) -> MemoryFootprint | None:
        """Return the expected memory while asleep; None on a CPU, where sleep frees nothing."""
        if self._device == "cpu":
            return None
        return MemoryFootprint(device_bytes=CONTEXT, host_bytes=self._base + self._parked.host_bytes)

    def host_bytes(self) -> int:
        """Return this process's host memory, including pinned copies; 0 on a CPU."""
        if self._device == "cpu":
            return 0
        import torch

        pinned = int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))
        return max(psutil.Process().memory_info().rss, self._base + pinned)

    def device_bytes(self) -> int:
        """Return this process's device memory while awake, including what graphs may still use."""
        return resident_bytes(self._device) + (self._captured.bytes_left if self._captured is not None else 0)

    async def down(self) -> MemoryFootprint:
        if self._before is None:
            self._before = await self._known()
        if self._captured is not None:
            self._captured.clear()
        await asyncio.to_thread(self._parked.park)
        return MemoryFootprint(device_bytes=resident_bytes(self._device), host_bytes=self.host_bytes())

    async def up(self) -> MemoryFootprint:
        await asyncio.to_thread(self._parked.unpark)
        assert self._before is not None
        if not np.allclose(await self._known(), self._before, atol=TOLERANCE, rtol=TOLERANCE):
            raise EngineFailed("the model woke with other weights: its answer to a known input has changed")
        return MemoryFootprint(device_bytes=self.device_bytes(), host_bytes=self.host_bytes())
