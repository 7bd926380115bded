"""Requests, unloads, deaths and engines that do not sleep or wake well, in any order: what must hold all the same.

On a virtual clock, with the real manager and queues. STORMS=3000 runs more of them.
"""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.messages import Held, Loaded, Progress
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime import frames
from runtime.death import Cause
from runtime.link import SlotLink
from runtime.residency.entry import ModelEntry
from runtime.residency.states import HOLDS_MEMORY, ModelState
from tests.fakes.virtual import VirtualCall, VirtualLink, VirtualLoop, VirtualWorld

S = ModelState
STORMS = int(os.environ.get("STORMS", "120"))
LOADS = {"a": 3.0, "b": 1.0, "c": 0.5, "d": 2.0}
QUIET = 3600.0
"""Virtual seconds after the last action in which everything has to come to rest."""
FAILED = EngineFailed("it died", code="engine_died")


class MortalLink(VirtualLink):
    """A slot that can die at any moment, and whose engine may fail to sleep or to wake."""

    def __init__(self, world: "Storm") -> None:
        super().__init__(world)
        self.gone = asyncio.get_running_loop().create_future()
        self.storm = world

    @property
    def alive(self) -> bool:
        return not self.gone.done()

    async def work(self, seconds: float) -> None:
        """What runs in the slot. Raises when it dies."""
        await asyncio.wait({self.gone}, timeout=seconds)
        if self.gone.done():
            raise FAILED

    def call(self, make: Any) -> "MortalCall":
        if not self.alive:
            raise Unavailable("being restarted", retry_after=1.0)
        return MortalCall(super().call(make), self)

    async def command(self, make: Any, timeout: float) -> Held:
        frame = make(0)
        falls = isinstance(frame, frames.Sleep)
        assert self.alive is False or self.sleeps is not falls, "a sleeping engine was told to sleep, or the reverse"
        assert not self.world.queues[self.model].running or not falls, "requests run on an engine that falls asleep"
        await self.work(self.world.wake_seconds)
        if self.model in self.storm.insomniacs:
            raise EngineFailed("it does not sleep or wake well")
        self.sleeps = falls
        asleep = self.world.asleep[self.model]
        return asleep if falls else Held(device_bytes=self.world.bytes[self.model], host_bytes=asleep.host_bytes)

    async def end(self, grace: float = 0.0, cause: object = None) -> None:
        if self.alive:
            self.gone.set_result(None)
            await asyncio.sleep(0.05)
            self.world.free += 1

    async def die(self) -> None:
        if not self.alive:
            return
        self.cause = Cause("killed", "its process was ended by SIGKILL")
        self.gone.set_result(None)
        self.world.manager.died(self)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        self.world.free += 1


class MortalCall(VirtualCall):
    def __init__(self, call: VirtualCall, link: MortalLink) -> None:
        super().__init__(call.seconds, call.bytes, call.asleep)
        self.link = link

    async def done(self, report: Any) -> Loaded:
        report(Progress(phase="weights", fraction=0.5))
        await self.link.work(self.seconds)
        return Loaded(
            resident_bytes=self.bytes, weights_bytes=self.bytes, seconds={"weights": self.seconds}, asleep=self.asleep
        )


@dataclass
class Storm(VirtualWorld):
    insomniacs: set[str] = field(default_factory=set)
    links: list[MortalLink] = field(default_factory=list)
    answered: int = 0
    refused: list[str] = field(default_factory=list)

    async def take(self, engine: str, timeout: float = 60.0) -> SlotLink:
        while not self.free:  # a slot that died is on its way back
            await asyncio.sleep(0.01)
        self.free -= 1
        self.links.append(MortalLink(self))
        return self.links[-1]  # type: ignore[return-value]

    def retried(self, entry: ModelEntry, reason: str) -> None:
        """A slot that dies while it loads may have died for want of memory."""

    async def ask(self, model: str, seconds: float) -> None:
        try:
            async with await self.queues[model].acquire(None) as lease:
                link: Any = lease.link
                assert link.alive is False or not link.sleeps, "a request met a sleeping engine"
                assert link.alive is False or link.model == model, "a request met another model"
                await link.work(seconds)
                self.answered += 1
        except RoundhouseError as error:
            self.refused.append(error.code)

    async def by_hand(self, model: str, load: bool) -> None:
        entry = self.manager.entries[model]
        try:
            await (self.manager.load(entry) if load else self.manager.unload(entry))
        except RoundhouseError as error:
            self.refused.append(error.code)

    def check(self) -> None:
        """At any moment."""
        manager = self.manager
        assert self.held() <= self.budget
        assert manager.held_on_host() <= manager.host_budget
        assert 0 <= self.free <= self.slots
        alive = [link for link in self.links if link.alive]
        assert self.free + len(alive) <= self.slots
        holders = [entry.link for entry in manager.entries.values() if entry.link is not None]
        assert len(set(map(id, holders))) == len(holders), "two models in one slot"
        for entry in manager.entries.values():
            if entry.state in (S.READY, S.ASLEEP):
                link: Any = entry.link
                assert link is not None
                assert link.alive, "a death that nobody noticed"
                assert link.sleeps is (entry.state is S.ASLEEP)
            if entry.state not in HOLDS_MEMORY:
                assert (entry.link, entry.bytes, entry.host_bytes, entry.claim) == (None, 0, 0, 0), entry.id

    def check_rest(self) -> None:
        """When nothing goes on any more."""
        self.check()
        for entry in self.manager.entries.values():
            assert entry.state in (S.READY, S.ASLEEP, S.ABSENT, S.FAILED), (entry.id, entry.state)
            assert (entry.queue.running, entry.queue.waiting) == (0, 0)
            assert entry.link is None or entry.link.alive  # type: ignore[attr-defined]
        residents = sum(entry.link is not None for entry in self.manager.entries.values())
        assert self.free + residents == self.slots, "a slot was lost"
        assert sum(link.alive for link in self.links) == residents, "a process that nobody knows"
        assert self.manager._claims == 0


MODELS = st.sampled_from(sorted(LOADS))
GAPS = st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.55, 1.0, 5.0])
ACTIONS = st.one_of(
    st.tuples(st.just("ask"), MODELS, st.sampled_from([0.0, 0.2, 2.0, 9.0])),
    st.tuples(st.just("ask"), MODELS, st.sampled_from([0.0, 0.2, 2.0, 9.0])),
    st.tuples(st.sampled_from(["load", "unload", "kill", "kill", "insomnia"]), MODELS, st.just(0.0)),
)


async def storm(actions: list[tuple[tuple[str, str, float], float]], sleepers: set[str], host: int, slots: int) -> None:
    world = Storm(
        bytes=dict.fromkeys(LOADS, 100), seconds=LOADS, budget=250, slots=slots, host_budget=host,
        residency={"min_resident": 0.5, "drain_deadline": 5, "idle_timeout": 40}, wake_seconds=0.4,
        asleep={name: Held(device_bytes=10, host_bytes=100) for name in sleepers},
    )  # fmt: skip
    watching = asyncio.create_task(world.manager.watch(heartbeat=7.0, hung_after=30.0))
    world.manager._ping = _no_ping  # type: ignore[method-assign]  # nothing hangs here
    tasks = []
    for (what, model, seconds), gap in actions:
        entry = world.manager.entries[model]
        match what:
            case "ask":
                tasks.append(asyncio.create_task(world.ask(model, seconds)))
            case "load" | "unload":
                tasks.append(asyncio.create_task(world.by_hand(model, what == "load")))
            case "insomnia":
                world.insomniacs.add(model)
            case "kill" if isinstance(entry.link, MortalLink):
                tasks.append(asyncio.create_task(entry.link.die()))
        end = world.clock() + gap
        while world.clock() < end:
            await asyncio.sleep(min(0.025, end - world.clock()))
            world.check()
    done, waiting = await asyncio.wait(tasks, timeout=QUIET) if tasks else (set(), set())
    states = {entry.id: entry.state.value for entry in world.manager.entries.values()}
    assert not waiting, f"{len(waiting)} wait for ever: {states}"
    for task in done:
        await task  # an assertion in it
    await asyncio.sleep(200.0)  # back-offs, idle time-outs
    world.check_rest()
    asks = sum(what == "ask" for (what, _, _), _ in actions)
    assert world.answered + len(world.refused) >= asks
    watching.cancel()
    await world.manager.close()


async def _no_ping(*_: object) -> None:
    return None


@settings(max_examples=STORMS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(st.tuples(ACTIONS, GAPS), min_size=15, max_size=40),
    sleepers=st.sets(MODELS),
    host=st.sampled_from([100, 210, 1000]),
    slots=st.integers(2, 4),
)
def test_nothing_is_lost_and_nobody_waits_for_ever(
    actions: list[tuple[tuple[str, str, float], float]], sleepers: set[str], host: int, slots: int
) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(storm(actions, sleepers, host, slots))
    finally:
        loop.close()
