"""The requests of one model: a bounded line, leases, and the adapters that running requests need in place.

The order is decided by `adapters.placement` (pure); this file carries its plans out: it sends Stage, Place and Drop to
the slot and starts requests. For models without adapters the same policy sees requests of the base only.

| event          | engine ready                     | engine away                                  |
|----------------|----------------------------------|----------------------------------------------|
| acquire        | waits its turn, then a lease     | waits; asks residency for the model          |
| release        | next request may start           | nothing to start                             |
| open           | -                                | policy starts afresh: all adapters unplaced  |
| engine_gone    | running calls fail by their link | -                                            |
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from adapters.placement import Placement
from models.messages import AdapterRef
from registry.errors import Conflict, EngineFailed, QueueFull, RoundhouseError, Unavailable
from registry.recipe import Recipe, Task
from runtime import frames
from runtime.link import SlotLink

log = logging.getLogger("roundhouse.scheduler")
STAGE_SECONDS = 60.0


@dataclass(slots=True)
class Ticket:
    """One request from its arrival to its end."""

    id: str
    adapter: AdapterRef | None
    arrived: float
    turn: asyncio.Future[SlotLink]
    started: float | None = None
    aborted: asyncio.Future[RoundhouseError] | None = None


@dataclass(slots=True)
class AdapterStats:
    """Times of one digest on one model; the placement policy keeps the counts."""

    stage_seconds: float = 0.0
    place_seconds: float = 0.0
    last_used: float = 0.0


@dataclass(slots=True)
class Bounds:
    """Shared by all queues: how many requests may wait in the whole server."""

    max_waiting: int
    waiting: int = 0
    listeners: list[Callable[[], None]] = field(default_factory=list)


class Lease:
    """The hold on a resident model, and on an adapter's place. Use as an async context manager."""

    def __init__(self, queue: "ModelQueue", ticket: Ticket, link: SlotLink) -> None:
        self.queue, self.ticket, self.link = queue, ticket, link
        self.queued_seconds = (ticket.started or 0.0) - ticket.arrived

    def abort_reason(self) -> RoundhouseError | None:
        future = self.ticket.aborted
        return future.result() if future is not None and future.done() else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the place back; safe to call twice."""
        self.queue.release(self.ticket)


class ModelQueue:
    """The line of one model.

    Args:
        recipe: bounds (`queue`), how many run at once (`batching.max_requests`), adapter places.
        bounds: of the whole server.
        want: asks residency for the model; raises what makes waiting pointless.
        released: tells residency that a lease ended.
        check: looks at an adapter's stored files before they are staged; raises what is wrong with them.
    """

    def __init__(
        self,
        recipe: Recipe,
        bounds: Bounds,
        want: Callable[[], None],
        released: Callable[[], None],
        check: Callable[[str], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recipe, self._bounds, self._want, self._released, self._clock = recipe, bounds, want, released, clock
        self._check = check
        places = recipe.memory.adapters
        # A chat engine batches inside itself; the others batch across requests, so two batches' worth keeps them busy.
        limit = recipe.batching.max_requests * (1 if recipe.task is Task.CHAT else 2)
        self.policy = Placement(places.device, places.host, limit)
        self._link: SlotLink | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[str, Ticket] = {}
        self._running: dict[str, Ticket] = {}
        self._refs: dict[str, AdapterRef] = {}
        self.adapters: dict[str, AdapterStats] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._service = 0.5  # running mean of a request's seconds in the engine; for Retry-After

    # --- what residency sees ----------------------------------------------------------------------------------------
    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> float | None:
        return min((t.arrived for t in self._waiting.values()), default=None)

    def running_with(self, digest: str) -> int:
        return sum(t.adapter is not None and t.adapter.digest == digest for t in self._running.values())

    def waiting_with(self, digest: str) -> int:
        return sum(t.adapter is not None and t.adapter.digest == digest for t in self._waiting.values())

    def holds(self, digest: str) -> bool:
        """Whether a running or waiting request needs this adapter."""
        return bool(self.running_with(digest) or self.waiting_with(digest))

    def open(self, link: SlotLink) -> None:
        self._link = link
        self.policy.reset()
        self.pump()

    def close(self) -> None:
        self._link = None

    def engine_gone(self) -> None:
        self._link = None
        self.policy.reset()

    def refuse(self, error: RoundhouseError) -> None:
        for ticket in list(self._waiting.values()):
            if not ticket.turn.done():
                ticket.turn.set_exception(error)

    def abort_running(self, error: RoundhouseError) -> None:
        for ticket in self._running.values():
            if ticket.aborted is not None and not ticket.aborted.done():
                ticket.aborted.set_result(error)

    # --- requests ---------------------------------------------------------------------------------------------------
    def predicted_wait(self) -> float:
        """Seconds until a request that comes now would start, by the mean of the recent ones."""
        return max(1.0, self._service * (len(self._waiting) + 1) / max(1, self.policy.max_requests))

    async def acquire(self, adapter: AdapterRef | None, max_wait: float | None = None) -> Lease:
        """Wait for a turn. Raises QueueFull at once, Unavailable after the recipe's `queue.max_wait` seconds."""
        limit = self.recipe.queue.max_wait if max_wait is None else max_wait
        if len(self._waiting) >= self.recipe.queue.max_waiting:
            raise QueueFull(
                f"{len(self._waiting)} requests wait for model '{self.recipe.id}' already. Try again later.",
                retry_after=self.predicted_wait(),
            )
        if self._bounds.waiting >= self._bounds.max_waiting:
            raise QueueFull(
                f"{self._bounds.waiting} requests wait in this server already. Try again later.",
                retry_after=self.predicted_wait(),
            )
        loop = asyncio.get_running_loop()
        now = self._clock()
        ticket = Ticket(str(next(self._ids)), adapter, now, loop.create_future(), aborted=loop.create_future())
        if adapter is not None:
            self._refs[adapter.digest] = adapter
            self.adapters.setdefault(adapter.digest, AdapterStats())
        self._waiting[ticket.id] = ticket
        self._bounds.waiting += 1
        self.policy.enqueue(ticket.id, adapter.digest if adapter else None, now)
        try:
            self._want()
            self.pump()
            async with asyncio.timeout(limit):
                link = await ticket.turn
            return Lease(self, ticket, link)
        except TimeoutError:
            raise Unavailable(
                f"Model '{self.recipe.id}' had no room for this request within {limit:.0f} s.",
                code="queue_timeout",
                retry_after=self.predicted_wait(),
            ) from None
        finally:
            if self._waiting.pop(ticket.id, None) is not None:  # refused, timed out or the client left
                self._bounds.waiting -= 1
                self.policy.cancel(ticket.id)
                self.pump()
            elif ticket.turn.cancelled():  # it started in the moment in which the client left
                self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        if self._running.pop(ticket.id, None) is None:
            return
        now = self._clock()
        self._service += 0.1 * (now - (ticket.started or now) - self._service)
        self.policy.finish(ticket.id, now)
        self.pump()
        self._released()

    def pump(self) -> None:
        """Carry out what the policy decides, until it has nothing more to say."""
        link = self._link
        if link is None:
            return
        now = self._clock()
        plan = self.policy.decide(now)
        for digest in plan.drop:
            self._drops.add(self._send(self._drop(link, digest)))
        for digest in plan.stage:
            self._send(self._stage(link, digest))
        for digest, evict in plan.place:
            self._send(self._place(link, digest, evict))
        for request in plan.start:
            self._start(request, link, now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if plan.wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, plan.wake_at - now), self.pump)

    def _start(self, request: str, link: SlotLink, now: float) -> None:
        ticket = self._waiting.pop(request)
        self._bounds.waiting -= 1
        ticket.started = now
        self._running[request] = ticket
        if ticket.adapter is not None:
            self.adapters[ticket.adapter.digest].last_used = time.time()
        if ticket.turn.cancelled():
            self.release(ticket)
        else:
            ticket.turn.set_result(link)

    # --- adapters ---------------------------------------------------------------------------------------------------
    async def _stage(self, link: SlotLink, digest: str) -> None:
        ref, stats, began = self._refs[digest], self.adapters[digest], self._clock()
        try:
            if self._check is not None:
                await self._check(digest)
            if self._drops:  # room in the engine's host memory comes with the drops that were decided before
                await asyncio.wait(set(self._drops))
            await link.command(lambda uid: frames.Stage(uid, ref), STAGE_SECONDS)
        except RoundhouseError as error:
            self._adapter_failed(link, digest, error)
            return
        stats.stage_seconds = self._clock() - began
        if self._link is link:
            self.policy.staged(digest)
            self.pump()

    async def _place(self, link: SlotLink, digest: str, evict: str | None) -> None:
        ref, stats, began = self._refs[digest], self.adapters[digest], self._clock()
        try:
            await self._placed(link, ref, evict)
        except RoundhouseError as error:
            self._adapter_failed(link, digest, error)
            return
        stats.place_seconds = self._clock() - began
        if self._link is link:
            self.policy.placed(digest, self._clock())
            self.pump()

    async def _placed(self, link: SlotLink, ref: AdapterRef, evict: str | None) -> None:
        """Place, and again while the engine still ends a call that was cancelled on the place's old adapter."""
        deadline = self._clock() + STAGE_SECONDS
        while True:
            try:
                await link.command(lambda uid: frames.Place(uid, ref, evict), STAGE_SECONDS)
                return
            except Conflict:
                if self._clock() > deadline:
                    raise
                await asyncio.sleep(0.005)

    async def _drop(self, link: SlotLink, digest: str) -> None:
        try:
            await link.command(lambda uid: frames.Drop(uid, digest), STAGE_SECONDS)
        except RoundhouseError as error:
            log.warning("dropping an adapter failed", extra={"digest": digest, "cause": error.message})

    def pin_adapter(self, adapter: AdapterRef) -> None:
        """Keep an adapter in its place, and bring it there; Conflict when no place would stay open."""
        self.policy.pin(adapter.digest)
        self._refs[adapter.digest] = adapter
        self.adapters.setdefault(adapter.digest, AdapterStats())
        self.pump()

    def unpin_adapter(self, digest: str) -> None:
        self.policy.unpin(digest)
        self.pump()

    def forget_adapter(self, digest: str) -> None:
        """The adapter was removed from the registry: nothing of it stays in the engine."""
        self.policy.forget(digest)
        self.adapters.pop(digest, None)
        self.pump()

    def _adapter_failed(self, link: SlotLink, digest: str, error: RoundhouseError) -> None:
        """Those who wait for this adapter get the reason; the engine and everybody else go on."""
        log.error("adapter failed", extra={"digest": digest, "cause": error.message})
        if self._link is not link:
            return  # the engine went away: its successor stages again
        cause = EngineFailed(f"The adapter could not be loaded: {error.message}", code="adapter_failed")
        for request in self.policy.failed(digest):
            turn = self._waiting[request].turn
            if not turn.done():
                turn.set_exception(cause)
        self.pump()

    def _send(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._drops.discard)
        return task
