"""What one request is while it waits, a ticket, and what it holds while it runs, a lease."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from models.messages import AdapterRef
from registry.errors import RoundhouseError
from registry.records import Probe
from runtime.scheduling.fair.claim import QueueRequest
from runtime.slots.link import SlotLink


@dataclass(slots=True)
class QueueEntry:
    """One request from its arrival to its end."""

    id: str
    adapter: AdapterRef | None
    probe: Probe | None
    """Of the adapter's version that the request named."""
    arrived: float
    turn: asyncio.Future[SlotLink]
    claim: QueueRequest
    started: float | None = None
    work: float | None = None
    """What it had; None: nobody knows yet."""
    aborted: asyncio.Future[RoundhouseError] | None = None
    missed: bool = False
    """Its adapter was in no place when it came."""
    swap_seconds: float = 0.0
    """Of its wait: what bringing its adapter into a place took."""


class SlotLease:
    """The hold on a resident model, and on an adapter's place. Use as an async context manager.

    Args:
        give_back: ends the hold; called again for a ticket that has ended, it does nothing.
        charge: tells of a ticket that it has had so much work already.
    """

    def __init__(
        self,
        ticket: QueueEntry,
        link: SlotLink,
        give_back: Callable[[QueueEntry], None],
        charge: Callable[[QueueEntry, float], None],
    ) -> None:
        self.ticket, self.link, self._give_back, self._charge = ticket, link, give_back, charge
        self.queued_seconds = (ticket.started or 0.0) - ticket.arrived
        self.swap_seconds = ticket.swap_seconds

    @property
    def pool(self) -> str:
        return self.ticket.claim.pool

    def progress(self, work: float) -> None:
        """So much was done for it until now."""
        self._charge(self.ticket, work)

    def set_work(self, work: float) -> None:
        """So much was done for it in all; told before it is given back."""
        self.ticket.work = work

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the place back; safe to call twice."""
        self._give_back(self.ticket)
