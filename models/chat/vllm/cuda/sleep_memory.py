"""Memory in an engine's sleep: pinned in advance on EngineCore's loop, and freed on a device with other engines.

When it falls asleep, vLLM pins a block for each allocation that it keeps (`CuMemAllocator.sleep`), which is nearly all
of the time of a first sleep. Torch caches freed pinned blocks and reuses them for any size that rounds up to the same
power of two. So blocks of these sizes are pinned while the engine is idle, one per call, held until all are pinned, and
then freed together for the sleep to reuse.

After a sleep vLLM asserts that the device has not less free memory than before. Another model that loads in these
seconds may take more than the sleep frees, so here the assertion counts only if something was not freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # EngineCore's environment is set before torch is loaded (`prewarm.environment`)
    import torch

FAILED = -1
KEPT = ("weights", "runtime", "cudagraph")
"""vLLM's tags of what a sleep keeps. The KV cache and scratch memory (`workspace`) are freed without a copy."""


class SleepBlocks:
    """Pinned blocks for the next sleep. sizes: bytes of the blocks that the sleep will pin."""

    def __init__(self, sizes: list[int]) -> None:
        self._missing, self._count = sorted(sizes), len(sizes)
        self._held: list[torch.Tensor] = []
        self._has_failed = False

    def pin_next(self) -> list[int]:
        """Pin one more block, largest first. Returns [number pinned or FAILED, number of all]."""
        if self._missing:
            size = self._missing.pop()
            try:
                self._held.append(pinned(size))
            except RuntimeError:  # out of host memory; the sleep will use what is pinned
                self._has_failed = True
                self._missing.clear()
        done = self._count - len(self._missing)
        if not self._missing:
            self.release()
        return [FAILED if self._has_failed else done, self._count]

    def release(self) -> None:
        """Free the blocks; torch caches them for the sleep."""
        self._held.clear()


def kept_blocks() -> list[int]:
    """Return the bytes of each block that a sleep pins. Empty without CUDA or without vLLM's allocator."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.instance
    pool = allocator.pointer_to_data.values() if allocator is not None else ()
    return [1 << (data.handle[1] - 1).bit_length() for data in pool if data.tag in KEPT]


def pinned(size: int) -> torch.Tensor:
    import torch

    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def prepare_sleep(self: Any, more: bool) -> list[int]:
    """Pin one more block for the next sleep; without `more` free the blocks, because the sleep begins.

    Returns [number pinned or FAILED, number of all].
    """
    blocks: SleepBlocks | None = self.__dict__.get("roundhouse_sleep_blocks")
    if blocks is None:
        blocks = self.__dict__["roundhouse_sleep_blocks"] = SleepBlocks(kept_blocks())
    if more:
        return blocks.pin_next()
    blocks.release()
    return [0, 0]


def patch(worker: Any) -> None:
    """worker: vLLM's Worker for a GPU."""
    stock_sleep = worker.sleep

    def sleep(self: Any, level: int = 1) -> None:
        try:
            stock_sleep(self, level)
        except AssertionError:
            if not _is_freed():
                raise

    worker.sleep = sleep


def _is_freed() -> bool:
    """Return whether vLLM's allocator has freed everything, so that a fall in free memory is due to other processes."""
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.instance
    return allocator is not None and all(data.is_asleep for data in allocator.pointer_to_data.values())
