"""Carry out placement plans: send Stage, Place and Drop frames, and run probes.

| plan has  | sent                                       | then reported to the policy     |
|-----------|--------------------------------------------|---------------------------------|
| drop      | Drop                                       | nothing                         |
| stage     | Stage, repeated once earlier drops end if  | staged, or failed               |
|           | they have to make room first               |                                 |
| place     | Place, if the adapter has no probes        | admitted, then placed or failed |
| place     | Place, then the adapter's probes           | placed, or failed               |

Requests for an adapter without probes start as soon as Place is sent: frames keep their order, and the slot makes each
request wait for the place. An adapter with probes counts as placed only when they have been answered. Results from an
engine that has since gone away are ignored.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from models.messages import AdapterRef
from registry.errors import Conflict, EngineFailed, FinalConflict, RoundhouseError, Unavailable, Unfit
from registry.records import Probe
from runtime.scheduling.placement import PlacementPlan
from runtime.scheduling.probes import ProbeResult, Probes
from runtime.slots import frames
from runtime.slots.link import SlotLink
from tenants.caller import ServiceClass

log = logging.getLogger("roundhouse.scheduler")
STAGE_SECONDS = 60.0
Step = Literal["stage", "place", "probe"]


class AdapterRegistry(Protocol):
    """What the gateway knows about adapters, and its callbacks for their outcomes."""

    async def check(self, digest: str) -> None:
        """Check an adapter's stored files before they are staged; raise if something is wrong."""
        ...

    def probes(self, digest: str) -> Sequence[Probe | None]:
        """Return the probes of all versions with this content; None for a version without one."""
        ...

    def dropped(self, digest: str) -> None:
        """Report that the engine does not have a removed adapter any more, so its files are no longer needed."""
        ...

    def note(self, step: Step, seconds: float, outcome: str) -> None:
        """Report the end of a step: 'ok' or 'failed'; for probes 'passed', 'failed' or 'error'."""
        ...

    def swapped(self, digest: str, evicted: str | None, staging: float, placing: float) -> None:
        """Report an adapter that got its place, with the seconds for staging and placing."""
        ...


class AdapterWaiters(Protocol):
    """The part of `runtime.scheduling.queue.ModelQueue` that the effects need."""

    def is_open(self, link: SlotLink) -> bool: ...
    def probes_waiting(self, digest: str) -> list[Probe | None]: ...
    def class_waiting(self, digest: str) -> ServiceClass: ...
    def adapter_staged(self, digest: str) -> None: ...
    def adapter_admitted(self, digest: str) -> None: ...
    def adapter_placed(self, digest: str) -> None: ...
    def adapter_failed(self, digest: str, error: RoundhouseError) -> None: ...


@dataclass(slots=True)
class AdapterStats:
    """Timings of one digest on one model. The placement policy has the counts."""

    stage_seconds: float = 0.0
    place_seconds: float = 0.0
    """Includes the probes."""
    last_used: float = 0.0
    staged_at: float = 0.0
    placed_at: float = 0.0
    """Times at which its last staging and its last placing ended, by the queue's clock."""


class AdapterEffects:
    """Carries out the placement plans of one model queue, on the gateway's event loop."""

    def __init__(self, queue: AdapterWaiters, registry: AdapterRegistry, clock: Callable[[], float]) -> None:
        self._queue, self._registry, self._clock = queue, registry, clock
        self.probes = Probes(clock)
        self.stats: dict[str, AdapterStats] = {}
        self._refs: dict[str, AdapterRef] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: dict[asyncio.Task[None], str] = {}
        """Drops in progress, with their digests."""
        self._forgotten: set[str] = set()
        """Removed adapters that the engine still has, or that requests still wait for."""

    def know(self, adapter: AdapterRef) -> None:
        """Add an adapter, so that plans may name it."""
        self._refs[adapter.digest] = adapter
        self._forgotten.discard(adapter.digest)
        self.stats.setdefault(adapter.digest, AdapterStats())

    def forget(self, digest: str, *, is_needed: bool) -> None:
        """Forget an adapter that was removed from the registry. is_needed: until a plan has it in `forgotten`."""
        self.stats.pop(digest, None)
        self.probes.clear(digest)
        if is_needed:
            self._forgotten.add(digest)
        else:
            self._refs.pop(digest, None)

    def used(self, digest: str) -> None:
        """Note that a request with this adapter starts."""
        self.stats.setdefault(digest, AdapterStats()).last_used = time.time()

    def moved_seconds(self, digest: str, since: float) -> float:
        """Return how many of the seconds since `since` were spent staging and placing the adapter."""
        stats, now = self.stats.get(digest, AdapterStats()), self._clock()
        staging = stats.stage_seconds if stats.staged_at > since else 0.0
        placing = stats.place_seconds if stats.placed_at > since else 0.0
        return min(staging + placing, now - since)

    def carry_out(self, link: SlotLink, plan: PlacementPlan) -> None:
        """Start all the plan's actions on adapters."""
        for digest in plan.drop:
            self._drops[self._send(self._drop(link, digest))] = digest
        for digest in plan.forgotten:
            self.stats.pop(digest, None)  # requests that were waiting have been counted since
            self._refs.pop(digest, None)
            if digest not in plan.drop:
                self._left(digest)
        for digest in plan.stage:
            self._send(self._stage(link, digest))
        for digest, evict in plan.place:
            self._send(self._place(link, digest, evict))

    async def wait_until_settled(self) -> None:
        """Return once no action is in progress. To put an engine to sleep, close its queue before."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def ask(self, link: SlotLink, adapter: AdapterRef, probe: Probe, service_class: ServiceClass) -> ProbeResult:
        """Return the probe's result since the commit, running it with the given class if there is none.

        Raises the engine's error.
        """
        if (known := self.probes.known(adapter.digest, probe)) is not None:
            return known
        began = self._clock()
        try:
            result = await self.probes.ask(link, adapter, probe, int(service_class))
        except RoundhouseError:
            self._registry.note("probe", self._clock() - began, "error")
            raise
        self._registry.note("probe", self._clock() - began, "passed" if result.passed else "failed")
        if not result.passed:
            log.error("the adapter's answer to its probe is not the registered one", extra={"digest": adapter.digest})
        return result

    async def _stage(self, link: SlotLink, digest: str) -> None:
        ref, began = self._refs[digest], self._clock()
        try:
            await self._registry.check(digest)
            await self._stage_once_free(link, ref)
        except Exception as error:  # whatever it is, the adapter must not stay in transit forever
            self._failed(link, digest, "stage", error)
            return
        seconds = self._clock() - began
        self._registry.note("stage", seconds, "ok")
        if digest in self.stats:
            self.stats[digest].stage_seconds, self.stats[digest].staged_at = seconds, self._clock()
        if self._queue.is_open(link):
            self._queue.adapter_staged(digest)

    async def _stage_once_free(self, link: SlotLink, ref: AdapterRef) -> None:
        """Stage the adapter; retry while earlier drops have yet to free the engine's host memory.

        Usually they are done by then, because frames keep their order and the engine handles both between the same
        steps. Only a drop of this same adapter must end first, or it would remove what is being staged.
        """
        if leaving := [drop for drop, digest in self._drops.items() if digest == ref.digest]:
            await asyncio.wait(leaving)
        while True:
            before = set(self._drops)
            try:
                await link.command(lambda uid: frames.Stage(uid, ref), STAGE_SECONDS)
                return
            except Conflict:
                if not before:
                    raise
                await asyncio.wait(before)

    async def _place(self, link: SlotLink, digest: str, evict: str | None) -> None:
        ref, began = self._refs[digest], self._clock()

        def admit() -> None:
            if not any(probes) and self._queue.is_open(link):
                self._queue.adapter_admitted(digest)

        try:
            self.probes.clear(digest)
            probes = self._probes_of(digest)
            await self._retry_while_busy(link, lambda uid: frames.Place(uid, ref, evict), admit)
            passed = not any(probes) or await self._probe(link, ref)
        except Exception as error:  # as above; the place would be lost, too
            self._failed(link, digest, "place", error)
            return
        seconds = self._clock() - began
        self._registry.note("place", seconds, "ok")
        if digest in self.stats:
            self.stats[digest].place_seconds, self.stats[digest].placed_at = seconds, self._clock()
        if not self._queue.is_open(link):
            return
        if passed:
            staging = self.stats[digest].stage_seconds if digest in self.stats else 0.0
            self._registry.swapped(digest, evict, staging, seconds)
            self._queue.adapter_placed(digest)
        else:
            again = Unavailable("The adapter's probe failed.", code="adapter_probe_failed", retry_after=1.0)
            self._queue.adapter_failed(digest, again)

    async def _retry_while_busy(
        self, link: SlotLink, make: Callable[[int], frames.ToSlot], sent: Callable[[], None] = lambda: None
    ) -> None:
        """Send a Place or Drop; retry while the engine is still ending a cancelled call on that adapter."""
        deadline = self._clock() + STAGE_SECONDS
        while True:
            try:
                await link.command(make, STAGE_SECONDS, sent)
                return
            except Conflict:
                if self._clock() > deadline:
                    raise
                await asyncio.sleep(0.005)

    async def _probe(self, link: SlotLink, ref: AdapterRef) -> bool:
        """Run the probes of this content; return whether any of them allows the adapter."""
        needed = self._probes_of(ref.digest)
        probes = [probe for probe in needed if probe is not None]
        waiting = self._queue.class_waiting(ref.digest)
        results = await asyncio.gather(*(self.ask(link, ref, probe, waiting) for probe in probes))
        return None in needed or any(result.passed for result in results)

    def _probes_of(self, digest: str) -> list[Probe | None]:
        """Return the probes registered for this content and those of the requests waiting for it."""
        return list(dict.fromkeys([*self._registry.probes(digest), *self._queue.probes_waiting(digest)]))

    async def _drop(self, link: SlotLink, digest: str) -> None:
        try:
            await self._retry_while_busy(link, lambda uid: frames.Drop(uid, digest))
        except RoundhouseError as error:
            log.warning("dropping an adapter failed", extra={"digest": digest, "cause": error.message})
            return
        self._left(digest)

    def _left(self, digest: str) -> None:
        """Report a removed adapter that nothing needs any more, so that its files are deleted."""
        if digest in self._forgotten:
            self._forgotten.discard(digest)
            self._registry.dropped(digest)

    def _failed(self, link: SlotLink, digest: str, step: Step, error: Exception) -> None:
        if not isinstance(error, RoundhouseError):
            log.error("unmapped error in step '%s' of an adapter", step, exc_info=error)
            error = EngineFailed(f"internal error: {type(error).__name__}")
        log.error("adapter failed", extra={"digest": digest, "cause": error.message})
        self._registry.note(step, 0.0, "failed")
        if self._queue.is_open(link):  # otherwise the engine is gone, and the next one stages again
            self._queue.adapter_failed(digest, _cause(error))

    def _send(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: self._drops.pop(done, None))
        return task


def _cause(error: RoundhouseError) -> RoundhouseError:
    """Return the error for the requests of an adapter that could not be loaded."""
    if isinstance(error, Unfit):  # it was checked when it was registered, so the base has changed since
        return FinalConflict(
            f"The adapter does not fit the weights that its base has now: {error.message}. Register a version that was "
            "trained on them.",
            code="unfit_adapter",
        )
    return EngineFailed(f"The adapter could not be loaded: {error.message}", code="adapter_failed")
