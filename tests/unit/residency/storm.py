"""A checked world on a virtual clock in which slots die, loads fail and engines fail to sleep or wake."""

import asyncio
import logging
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from models.messages import LoadResult, MemoryFootprint, Progress
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime.residency import policy
from runtime.residency.drainer import MOST_FAILED_SLEEPS
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import NOT_RESIDENT
from runtime.residency.states import HOLDS_MEMORY, ModelState
from runtime.slots import frames
from runtime.slots.link import Cause, SlotLink
from tests.fakes.virtual import VirtualCall, VirtualLink, VirtualWorld

S = ModelState
FAILED = EngineFailed("it died", code="engine_died")
AWAKE = 20
"""The bytes of host memory that an awake model needs."""
BACK = 2.0
"""The seconds until an empty slot replaces one that ended."""
DRAIN, LEAVES = 5.0, 0.3
"""The seconds after which a drain ends requests, and the seconds that such a request takes to end."""
MOST_DRAINING = 2 * DRAIN + 1.0
"""The longest drain. A drained model may have to wait for host memory until another one has drained."""


class MortalLink(VirtualLink):
    """A slot that can die at any moment, and whose engine may fail to sleep or to wake."""

    def __init__(self, world: "Storm") -> None:
        super().__init__(world)
        self.devices: tuple[str, ...] = ()
        self.ending = asyncio.get_running_loop().create_future()
        self.storm = world
        self.changing = self.ended = False

    @property
    def alive(self) -> bool:
        return not self.ending.done()

    async def work(self, seconds: float, *ended_by: asyncio.Future[Any]) -> None:
        """Work for `seconds` or until one of the futures ends it. Raises an error if the slot dies."""
        await asyncio.wait({self.ending, *ended_by}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.ending.done():
            raise FAILED

    def call(self, make: Any) -> "MortalCall":
        if not self.alive:
            raise Unavailable("being restarted", retry_after=1.0)
        assert not self.sleeps
        assert not self.changing
        call = super().call(make)
        self.devices = self.world.manager.entries[self.model].devices
        return MortalCall(call, self)

    async def command(self, make: Any, timeout: float) -> MemoryFootprint:
        frame = make(0)
        falls = isinstance(frame, frames.Sleep)
        assert self.alive is False or self.sleeps is not falls, "an engine got the command for its present state"
        assert not self.entry.queue.running or not falls, "requests run on an engine that falls asleep"
        failed, name = self.storm.sleepless, self.entry.id
        assert not falls or failed[name] < MOST_FAILED_SLEEPS, "a sleep is repeated after too many failures"
        self.changing = True
        try:
            await self.work(self.world.wake_seconds)
        finally:
            self.changing = False
        if self.model in self.storm.insomniacs:
            failed[name] += 1 if falls else MOST_FAILED_SLEEPS
            raise EngineFailed("it does not sleep or wake well")
        self.sleeps = falls
        asleep = self.world.asleep[self.model]
        return (
            asleep
            if falls
            else MemoryFootprint(device_bytes=self.world.bytes[self.model], host_bytes=asleep.host_bytes)
        )

    async def end(self, cause: object = None) -> None:
        if self.alive:
            self.ended, self.connected = True, False
            self.ending.set_result(None)
            await asyncio.sleep(0.05)
            asyncio.get_running_loop().call_later(BACK, self.storm.slot_is_back)

    async def die(self) -> None:
        if not self.alive:
            return
        self.connected, self.cause = False, Cause("killed", "its process was ended by SIGKILL", signal.SIGKILL)
        self.ending.set_result(None)
        self.world.manager.watcher.died(self)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(BACK, self.storm.slot_is_back)


class MortalCall(VirtualCall):
    def __init__(self, call: VirtualCall, link: MortalLink) -> None:
        super().__init__(call.seconds, call.bytes, call.asleep)
        self.link = link

    async def done(self, report: Any) -> LoadResult:
        report(Progress(phase="weights", fraction=0.5))
        await self.link.work(self.seconds)
        if (code := self.link.storm.spoiled.pop(self.link.model, None)) is not None:
            raise EngineFailed("it does not load", code=code)
        return LoadResult(
            resident_bytes=self.bytes, weights_bytes=self.bytes, host_bytes=AWAKE, seconds={"weights": self.seconds},
            asleep=self.asleep,
        )  # fmt: skip


@dataclass
class Storm(VirtualWorld):
    insomniacs: set[str] = field(default_factory=set)
    sleepless: Counter[str] = field(default_factory=Counter)
    """Counts the failed sleeps of models. A failed wake counts as all attempts."""
    spoiled: dict[str, str] = field(default_factory=dict)
    """Models whose next load fails, with the error's code."""
    lacking: int = 0
    """The number of next loads that get no slot."""
    draining: dict[str, float] = field(default_factory=dict)
    """Draining models, with the times at which their drains began."""
    faults: list[str] = field(default_factory=list)
    """Errors that the manager only logs, and loads that overtook an older request."""
    links: list[MortalLink] = field(default_factory=list)
    answered: int = 0
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        start = self.manager.loader.start

        def in_order(entry: ModelEntry, plan: policy.Plan) -> None:
            for other in self.manager.entries.values():
                waits = other.state in NOT_RESIDENT and other is not entry and other.requested_since is not None
                waits = waits and not other.has_others
                if waits and (other.requested_since or 0.0) < (entry.requested_since or 0.0):
                    self.faults.append(f"{entry.id} overtakes {other.id}, which was requested earlier")
            start(entry, plan)

        self.manager.loader.start = in_order  # type: ignore[method-assign]
        for entry in self.manager.table.entries.values():
            entry.host_needed = AWAKE

    def slot_is_back(self) -> None:
        self.free += 1
        self.manager.decide()

    async def take(self, engine: str, timeout: float = 60.0) -> SlotLink:
        end = self.clock() + timeout
        while not self.free or self.lacking:  # a slot that died is being replaced
            await asyncio.sleep(0.01)
            if self.lacking or self.clock() > end:
                self.lacking = max(0, self.lacking - 1)
                raise Unavailable("no slot came", code="no_slot")
        self.free -= 1
        self.links.append(MortalLink(self))
        return self.links[-1]  # type: ignore[return-value]

    def retried(self, entry: ModelEntry, reason: str) -> None:
        """Accept a retried load, since a slot that died during a load may have run out of memory."""

    async def ask(self, model: str, seconds: float) -> None:
        try:
            async with await self.queues[model].acquire(None) as lease:
                link: Any = lease.link
                if link.alive:
                    assert not link.sleeps, "a request met a sleeping engine"
                    assert not link.changing, "a request met an engine that falls asleep or wakes"
                    assert link.model == model, "a request met another model"
                with suppress(EngineFailed):
                    await link.work(seconds, lease.ticket.aborted)
                if lease.ticket.aborted.done():
                    await asyncio.sleep(LEAVES)
                    raise lease.ticket.aborted.result()
                if not link.alive:
                    assert not link.ended, "a request lost its engine to another model without an error"
                    raise FAILED
                self.answered += 1
        except RoundhouseError as error:
            self.refused.append(error.code)

    async def load_or_unload(self, model: str, load: bool) -> None:
        entry = self.manager.entries[model]
        with suppress(RoundhouseError):
            await (self.manager.load(entry) if load else self.manager.unload(entry))

    def actual_bytes(self, device: str) -> int:
        """Return the bytes that slots use on a device, whatever the manager's table says."""
        return sum(
            (self.asleep[link.model].device_bytes if link.sleeps and not link.changing else self.bytes[link.model])
            // len(link.devices)
            for link in self.links
            if link.alive and device in link.devices
        )

    def check(self) -> None:
        """Check the invariants."""
        manager = self.manager
        assert not self.faults, self.faults
        for budget in manager.table.budgets:
            assert manager.table.used_bytes(device=budget.device) <= self.budget
            assert self.actual_bytes(budget.device) <= self.budget
        for entry in manager.entries.values():
            assert entry.link is None or len(entry.devices) == self.spread.get(entry.id, 1)
        assert manager.table.used_host_bytes() <= manager.table.host_budget
        assert 0 <= self.free <= self.slots
        alive = [link for link in self.links if link.alive]
        assert self.free + len(alive) <= self.slots
        holders = [entry.link for entry in manager.table.entries.values() if entry.link is not None]
        assert len(set(map(id, holders))) == len(holders), "two models in one slot"
        bounds = next(iter(self.queues.values()))._bounds
        assert bounds.waiting == sum(queue.waiting for queue in self.queues.values())
        for entry in manager.table.entries.values():
            if entry.state in (S.READY, S.ASLEEP):
                link: Any = entry.link
                assert link is not None
                assert link.alive, "a death was not noticed"
                assert link.sleeps is (entry.state is S.ASLEEP)
            if entry.state is S.DRAINING:
                since = self.draining.setdefault(entry.id, self.clock())
                assert self.clock() - since <= MOST_DRAINING, f"{entry.id} is still draining"
            else:
                self.draining.pop(entry.id, None)
            serves = any(replica.state in (S.READY, S.LOADING, S.DRAINING, S.UNLOADING) for replica in entry.replicas)
            if entry.state in (S.ABSENT, S.ASLEEP) and entry.queue.oldest is not None and not serves:
                assert entry.requested_since is not None, f"{entry.id} has waiting requests, but is not requested"
                assert entry.requested_since <= entry.queue.oldest, f"{entry.id} lost its place in the queue of loads"
            policy = entry.queue.policy
            if entry.state is S.READY and policy.waiting_for_model:
                assert policy.is_full, f"{entry.id} could run waiting requests"
            if entry.state not in HOLDS_MEMORY:
                assert (entry.link, entry.bytes, entry.host_bytes, entry.claim) == (None, 0, 0, 0), entry.id

    def check_rest(self) -> None:
        """Check the invariants of a world at rest."""
        self.check()
        for entry in self.manager.table.entries.values():
            assert entry.state in (S.READY, S.ASLEEP, S.ABSENT, S.FAILED), (entry.id, entry.state)
            assert (entry.queue.running, entry.queue.waiting) == (0, 0)
            assert entry.link is None or entry.link.alive  # type: ignore[attr-defined]
        residents = sum(entry.link is not None for entry in self.manager.table.entries.values())
        assert self.free + residents == self.slots, "a slot was lost"
        assert sum(link.alive for link in self.links) == residents, "a process without an entry"
        assert not self.manager.table.claims


class Unmapped(logging.Handler):
    """Collects unexpected errors, which the manager only logs, including failed assertions of the links above."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.faults.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
