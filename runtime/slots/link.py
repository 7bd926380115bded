"""The gateway's end of one slot, as everybody but the slots' own room sees it. The first form: `unix_link`.

A link is for one life: it ends with its slot's process, and the next process has a link of its own. So whoever keeps
one over an await never reaches another model's engine by it. Which processes there are, where they run and how they are
ended is its own affair.
"""

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, Self

from models.messages import MemoryFootprint
from registry.errors import RoundhouseError
from runtime.slots import frames
from runtime.slots.call import FrameCall

CONNECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an engine is gone."""

    code: str
    """For metrics and clients: killed, exited, out_of_memory, engine_hung, engine_failed or ended."""
    text: str
    """For people: 'its process was ended by SIGKILL'."""
    signal: int | None = None
    """Which ended its process, if one did."""

    @property
    def may_be_memory(self) -> bool:
        """Whether memory may have run out: the kernel then ends a process by SIGKILL, and does not always tell."""
        return self.code in ("out_of_memory", UNKNOWN.code) or self.signal == signal.SIGKILL

    @classmethod
    def of(cls, error: RoundhouseError) -> Self:
        """What a heartbeat found out."""
        return cls(error.code or "engine_failed", error.message.rstrip("."))


UNKNOWN = Cause("ended", "its process ended")


class SlotLink(Protocol):
    """
    | state     | connect                | call                         | end                               |
    |-----------|------------------------|------------------------------|-----------------------------------|
    | away      | waits for the slot     | Unavailable                  | nothing to do                     |
    | connected | already                | frames until Done or Failed  | ends the slot, waits till gone    |
    | over      | -                      | Unavailable                  | waits till gone                   |

    A slot that cannot be reached is away. One that says that its engine has ended is ended, and over.
    """

    @property
    def slot_id(self) -> int: ...
    @property
    def pid(self) -> int:
        """Of the slot's process, to show; 0: there is none."""
        ...

    @property
    def connected(self) -> bool: ...
    @property
    def cause(self) -> Cause:
        """Why its connection ended."""
        ...

    # --- an empty slot ----------------------------------------------------------------------------------------------
    prewarmed: str | None
    """The engine whose libraries it has imported, or is importing."""
    prewarmed_bytes: int
    warm: bool
    """Whether that import has ended."""

    def cold(self) -> None:
        """It counts as pre-warmed no more: it is taken, or its end has come."""
        ...

    # --- its life ---------------------------------------------------------------------------------------------------
    async def connect(self, timeout: float = CONNECT_SECONDS) -> None:
        """Wait for the slot and its greeting. Raises Unavailable when it does not come up in time."""
        ...

    async def end(self, grace: float = 0.0, cause: Cause | None = None) -> None:
        """End the slot for certain, and wait until nothing of it is left.

        With `grace` seconds its engine may close first. `cause` tells why it must end, if that is not by plan. However
        long that takes: its memory must never be counted as free before.
        """
        ...

    def gone(self) -> Awaitable[None]:
        """Once nothing is left of its process, which has been ended."""
        ...

    async def used_bytes(self) -> int:
        """What its processes hold now; 0: that is not known."""
        ...

    async def peak_bytes(self) -> int:
        """The most that they have held so far; 0: that is not known."""
        ...

    # --- what it is asked -------------------------------------------------------------------------------------------
    def call(self, make: Callable[[int], frames.ToSlot]) -> FrameCall:
        """Send a frame and return the call; use it as a context manager. Raises Unavailable when away."""
        ...

    async def counted(self, timeout: float) -> bytes:
        """What its engine counts by itself, as Prometheus text; empty: nothing, or no answer in `timeout` seconds."""
        ...

    async def command(self, make: Callable[[int], frames.ToSlot], timeout: float) -> MemoryFootprint | None:
        """A call without events; what is held after a sleep or a wake.

        Raises EngineFailed after `timeout` seconds, or the slot's error.
        """
        ...
