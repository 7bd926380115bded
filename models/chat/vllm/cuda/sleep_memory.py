"""Pinned memory for an engine's sleep, allocated in advance on EngineCore's loop.

As it falls asleep, vLLM pins a block for each allocation that it keeps (`CuMemAllocator.sleep`): the first sleep of 28
GB took 16 s, nearly all of it for that. Torch keeps pinned blocks that were freed, and gives one out again for any size
with the same power of two above it. So blocks of these sizes are pinned while the engine is idle, one for each call,
held until all are there, and freed together for the sleep to find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # EngineCore's environment is made before torch is loaded (`prewarm.environment`)
    import torch

FAILED = -1


class SleepBlocks:
    """sizes: bytes of the blocks that the sleep will pin."""

    def __init__(self, sizes: list[int]) -> None:
        self._missing, self._count = sorted(sizes), len(sizes)
        self._held: list[torch.Tensor] = []
        self._has_failed = False

    def pin_next(self) -> list[int]:
        """Pin one more, the largest first. [those pinned, or FAILED; all]."""
        if self._missing:
            size = self._missing.pop()
            try:
                self._held.append(pinned(size))
            except RuntimeError:  # no host memory is left: the sleep will find what there is
                self._has_failed = True
                self._missing.clear()
        done = self._count - len(self._missing)
        if not self._missing:
            self.release()
        return [FAILED if self._has_failed else done, self._count]

    def release(self) -> None:
        """Free those that are held; torch keeps them for the sleep."""
        self._held.clear()


def kept_blocks() -> list[int]:
    """Bytes of each block that a sleep pins. Empty without CUDA, or without vLLM's allocator."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.instance
    pool = allocator.pointer_to_data.values() if allocator is not None else ()
    return [1 << (data.handle[1] - 1).bit_length() for data in pool if data.tag != "kv_cache"]


def pinned(size: int) -> torch.Tensor:
    import torch

    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def prepare_sleep(self: Any, more: bool) -> list[int]:
    """Pin the memory of one more block of the next sleep; without `more` free what is held, since it begins.

    [blocks pinned, or FAILED; all of them].
    """
    blocks: SleepBlocks | None = self.__dict__.get("roundhouse_sleep_blocks")
    if blocks is None:
        blocks = self.__dict__["roundhouse_sleep_blocks"] = SleepBlocks(kept_blocks())
    if more:
        return blocks.pin_next()
    blocks.release()
    return [0, 0]
