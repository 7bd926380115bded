"""DeviceMemory that a model gave back is seen to be free before it is counted as free."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

VISIBLE_SHARE = 0.9
"""Share of what a model held that must show as free: the figures of engines and of the driver differ by a little."""
MAX_WAIT_SECONDS, POLL_SECONDS = 10.0, 0.05
"""Seconds that the driver may take, and between two looks."""


class DeviceMemory(Protocol):
    async def used(self) -> int | None:
        """Bytes in use on the device, by all processes; None: nobody tells. Asked before a model leaves, and at each
        heartbeat."""
        ...

    async def back(self, held: int, before: int | None) -> None:
        """Return when `held` bytes fewer are in use than `before`. None: nobody could ask before, as of a death."""
        ...


class HostMemory:
    """On a CPU the end of the process group is the proof: the kernel has taken its pages back."""

    async def used(self) -> None:
        return None

    async def back(self, held: int, before: int | None) -> None:
        return


@dataclass
class _PendingRelease:
    target: float
    """In use, at most, when its bytes are back."""


class GpuMemory:
    """The driver frees memory a little after the process has ended, so the used bytes must be seen to fall.

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
