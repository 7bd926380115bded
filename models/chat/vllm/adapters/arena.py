"""Host memory for staged adapters with a GPU: blocks of one size, pinned once and reused.

Torch pins a block of a power of two for each adapter: 128 MiB for 84 MB, taking tens of milliseconds the first time.
Here the memory is one mapping with pages of 2 MiB, and a block has the size of a place. Blocks are pinned one at a
time, one ahead of need, so that the first adapter is staged as fast as later ones.

| a block is     | until                                                                                    |
|----------------|------------------------------------------------------------------------------------------|
| not made       | it is needed, or the previous one was taken                                               |
| free           | `take`                                                                                    |
| taken          | nothing refers to its memory any more, wherever its tensors were passed                   |
| given back     | the last copy from it has ended; tracked by an event, because torch does not know it      |
"""

from __future__ import annotations

import logging
import mmap
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np
import torch

log = logging.getLogger("roundhouse.chat")
PAGE = 2 << 20
NO_RESERVE = 0x4000
"""MAP_NORESERVE, missing in Python's mmap: pages count only when used."""
PORTABLE = 1
"""cudaHostRegisterPortable."""


class CopyEvent(Protocol):
    """The interface of torch.cuda.Event."""

    def record(self) -> None: ...
    def query(self) -> bool: ...


class Arena:
    """Blocks of pinned memory. Call `take` and `make_spare` in one thread, `copied` in the thread that copies.

    Args:
        count: maximum number of blocks.
        size: bytes of a block.
        pin: pins bytes at an address. Raises RuntimeError.
        new_event: creates an event, which is recorded on the then current stream.
    """

    def __init__(
        self, count: int, size: int, pin: Callable[[int, int], None], new_event: Callable[[], CopyEvent]
    ) -> None:
        self.size = -(-size // PAGE) * PAGE
        self._count, self._pin, self._new_event = count, pin, new_event
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        memory = mmap.mmap(-1, (count * self.size) + PAGE, flags=flags)
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        values = np.frombuffer(memory, dtype=np.uint8)
        self._values = values[-values.ctypes.data % PAGE :]
        self._free: deque[int] = deque()
        self._events: dict[int, CopyEvent] = {}
        self.made = 0
        """Number of pinned blocks."""

    def take(self, count: int) -> torch.Tensor | None:
        """Return memory of `count` bytes, (count,) uint8; None if that is too much or no block is free."""
        if count > self.size:
            return None
        number = self._next_free()
        if number is None and self._make():
            number = self._next_free()
        if number is None:
            return None
        start = number * self.size
        values = self._values[start : start + count]
        weakref.finalize(values, self._free.append, number).atexit = False  # alive as long as any tensor of it
        return torch.from_numpy(values)

    def make_spare(self) -> None:
        """Pin a block ahead of need, unless one is free."""
        if not self._free:
            self._make()

    def copied(self, data: torch.Tensor) -> None:
        """Note that a copy of these bytes to the device was enqueued on the current stream."""
        number, offset = divmod(data.data_ptr() - self._values.ctypes.data, self.size)
        if 0 <= number < self.made and data.nbytes:
            assert not offset, "a block is copied from its beginning"
            if (event := self._events.get(number)) is None:
                event = self._events[number] = self._new_event()
            event.record()

    def _next_free(self) -> int | None:
        for _ in range(len(self._free)):
            number = self._free.popleft()
            event = self._events.get(number)
            if event is None or event.query():
                return number
            self._free.append(number)
        return None

    def _make(self) -> bool:
        if self.made >= self._count:
            return False
        try:
            self._pin(self._values.ctypes.data + self.made * self.size, self.size)
        except RuntimeError as error:
            log.warning("cannot pin another block of memory for adapters", extra={"cause": str(error)})
            self._count = self.made
            return False
        self._free.append(self.made)
        self.made += 1
        return True


def cuda_arena(count: int, size: int) -> Arena:
    """Create an arena for copies to the current CUDA device."""
    return Arena(count, size, _register, torch.cuda.Event)


def _register(address: int, count: int) -> None:
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, count, PORTABLE))  # type: ignore[no-untyped-call]
