"""Running lines of batches give up their turns for people's requests (rule 11)."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from batches.work.policy import FILL_BELOW, HOUR, MOST_LOST, REVOKE_BELOW, Level, LostWork, Traffic, room_for
from runtime.gateway.local.rooms import QUIET_SECONDS
from runtime.scheduling.fair import Pool, QueueRequest
from runtime.scheduling.placement import Placement
from tenants.caller import ServiceClass

PLACES = 8
LINE = QueueRequest("batches", service_class=ServiceClass.BATCH, is_line=True)
PERSON = QueueRequest("people")


def add(policy: Placement, *names: str, claim: QueueRequest = PERSON, digest: str | None = None) -> None:
    for name in names:
        policy.enqueue(name, digest, 1.0, claim)


def full(places: int = PLACES, spare: int = 0, floor: float = 0.05) -> Placement:
    """Return the policy of an engine full of lines, the oldest first."""
    policy = Placement(0, 0, places, spare=spare, floor=floor)
    add(policy, *(f"line{number}" for number in range(places)), claim=LINE)
    assert len(policy.decide(1.0).start) == places
    return policy


def test_the_newest_lines_are_revoked_one_per_request() -> None:
    policy = full()
    add(policy, "a", "b")
    plan = policy.decide(1.0)
    assert (plan.start, plan.revoke) == ((), ("line7", "line6"))
    assert policy.decide(1.0).revoke == (), "they are already being revoked"
    add(policy, "c")
    assert policy.decide(1.0).revoke == ("line5",)
    policy.finish("line7", 2.0, 0.0)
    plan = policy.decide(2.0)
    assert (plan.start, plan.revoke) == (("a",), ())
    assert (policy.people_running, policy.people_waiting) == (1, 2)


def test_no_line_is_revoked_in_a_turn_that_others_may_not_use() -> None:
    policy = Placement(0, 0, 3, pools={"long": Pool(), "lines": Pool(reserved=1)})
    add(policy, "long", claim=replace(PERSON, pool="long"))
    add(policy, "line1", "line2", claim=replace(LINE, pool="lines"))
    assert policy.decide(1.0).start == ("long", "line1", "line2")
    add(policy, "short")
    assert policy.decide(1.0).revoke == ("line2",)
    policy.finish("line2", 2.0, 0.0)
    assert policy.decide(2.0).start == ("short",)
    add(policy, "another")
    assert policy.decide(2.0).revoke == (), "it could not start in that turn"


def test_spare_places_are_used_before_lines_are_revoked() -> None:
    policy = full(spare=2)
    add(policy, "a", "b", "c")
    plan = policy.decide(1.0)
    assert (plan.start, plan.revoke) == (("a", "b"), ("line7",))


@pytest.mark.parametrize(
    "claim",
    [
        QueueRequest("clients", service_class=ServiceClass.BATCH),
        QueueRequest("late", service_class=ServiceClass.INTERACTIVE, is_line=True),
    ],
)
def test_clients_batch_requests_and_lines_of_late_batches_are_not_revoked(claim: QueueRequest) -> None:
    policy = Placement(0, 0, PLACES)
    add(policy, *map(str, range(PLACES)), claim=claim)
    policy.decide(1.0)
    add(policy, "a")
    assert policy.decide(1.0).revoke == ()


def test_no_line_is_revoked_for_a_line_or_a_full_pool() -> None:
    policy = Placement(0, 0, PLACES, pools={"small": Pool(most=1)})
    add(policy, "one", claim=QueueRequest("people", pool="small"))
    add(policy, *(f"line{number}" for number in range(PLACES)), claim=LINE)
    policy.decide(1.0)
    add(policy, "two", claim=QueueRequest("people", pool="small"))
    assert policy.decide(1.0).revoke == ()
    add(policy, "three", claim=QueueRequest("people", pool=""))
    assert policy.decide(1.0).revoke == ("line6",)


def test_waiting_lines_have_no_floor() -> None:
    policy = full(floor=0.4)
    add(policy, *(f"more{number}" for number in range(4)), claim=LINE)
    started: list[str] = []
    for number in range(40):
        add(policy, f"person{number}")
        plan = policy.decide(1.0)
        started += plan.start
        for line in plan.revoke:
            policy.finish(line, 1.0, 0.0)
    started += policy.decide(1.0).start
    assert started == [f"person{number}" for number in range(PLACES)], "all places, in order of arrival"


def test_lines_leave_a_place_that_closes_for_a_person() -> None:
    policy = Placement(1, 4, PLACES, max_overtake=0.5)

    def place(digest: str) -> None:
        plan = policy.decide(1.0)
        assert plan.stage == (digest,)
        policy.staged(digest)
        assert policy.decide(1.0).place
        policy.placed(digest, 1.0)

    add(policy, "line0", "line1", claim=LINE, digest="sha256:a")
    place("sha256:a")
    assert len(policy.decide(1.0).start) == 2
    add(policy, "line2", claim=LINE, digest="sha256:b")
    assert policy.decide(1.0).stage == ("sha256:b",)
    policy.staged("sha256:b")
    plan = policy.decide(2.0)
    assert (plan.place, plan.revoke) == ((), ()), "lines wait for the ends of lines"
    policy.enqueue("person", "sha256:c", 2.0, PERSON)
    assert policy.decide(2.0).stage == ("sha256:c",)
    policy.staged("sha256:c")
    assert policy.decide(2.4).revoke == (), "it may be overtaken for half a second"
    assert policy.decide(2.5).revoke == ("line1", "line0")
    for line in ("line0", "line1"):
        policy.finish(line, 2.6, 0.0)
    assert policy.decide(2.6).place == (("sha256:c", "sha256:a"),)


def test_revocations_are_forgotten_with_their_engine() -> None:
    policy = full()
    add(policy, "a")
    assert policy.decide(1.0).revoke
    policy.reset()
    assert policy.decide(2.0).start == ("a",)
    add(policy, *(f"new{number}" for number in range(PLACES - 1)), claim=LINE)
    policy.decide(2.0)
    add(policy, "b", "c")
    assert len(policy.decide(2.0).revoke) == 2


# --- an hour of bursts ----------------------------------------------------------------------------------------------
CAPACITY, SPARE = 32, 4
STEP = 0.2
"""The seconds until a revoked line has left the engine."""


@dataclass
class Hours:
    """Endless lines and bursts of people's requests, on a virtual clock."""

    chance: random.Random
    line_seconds: tuple[float, float]
    pauses: tuple[float, ...]
    policy: Placement = field(default_factory=lambda: Placement(0, 0, CAPACITY, spare=SPARE))
    lost: LostWork = field(default_factory=LostWork)
    ended: Counter[str] = field(default_factory=Counter)
    hours: list[float] = field(default_factory=list)
    """The share of lines' work that was lost in each hour."""
    waits: int = 0
    """The number of decisions at which people waited for lines that were not revoked."""

    def run(self, seconds: float) -> None:
        self._ids, self._events, self._started = count(), list[tuple[float, int, str, str]](), dict[str, float]()
        self._revoked, self._lines, self._used = set[str](), set[str](), -QUIET_SECONDS
        self._push(0.0, "burst", "")
        self._push(HOUR, "hour", "")
        now = 0.0
        while now < seconds:
            now, _, kind, name = heapq.heappop(self._events)
            if kind == "burst":
                for _ in range(self.chance.choice((8, 16, 40))):
                    self.policy.enqueue(f"person{next(self._ids)}", None, now, PERSON)
                self._push(now + self.chance.choice(self.pauses), "burst", "")
            elif kind == "hour":
                self.hours.append(self.lost.part(now))
                self._push(now + HOUR, "hour", "")
            elif name in self._started and (kind == "left") == (name in self._revoked):
                self._end(name, now)
            self._fill(now)
            self._decide(now)

    def _push(self, at: float, kind: str, name: str) -> None:
        heapq.heappush(self._events, (at, next(self._ids), kind, name))

    def _end(self, name: str, now: float) -> None:
        ran = now - self._started.pop(name)
        self.policy.finish(name, now)
        if name in self._lines:
            self._lines.discard(name)
            self.lost.add(ran, now, is_lost=name in self._revoked)
            self.ended["lost" if name in self._revoked else "used"] += 1
            self._revoked.discard(name)
        else:
            self._used = now

    def _fill(self, now: float) -> None:
        others = self.policy.people_running + self.policy.people_waiting
        is_quiet = not others and now - self._used >= QUIET_SECONDS
        part = self.lost.part(now)
        self.policy.can_revoke = part < REVOKE_BELOW
        traffic = Traffic(CAPACITY, others, is_quiet=is_quiet, can_fill=part < FILL_BELOW)
        while len(self._lines) < room_for(traffic, Level.IDLE):
            name = f"line{next(self._ids)}"
            self._lines.add(name)
            self.policy.enqueue(name, None, now, LINE)

    def _decide(self, now: float) -> None:
        plan = self.policy.decide(now)
        for name in plan.start:
            self._started[name] = now
            seconds = self.chance.uniform(*self.line_seconds) if name in self._lines else self.chance.uniform(0.5, 3.0)
            self._push(now + seconds, "end", name)
        for name in plan.revoke:
            self._revoked.add(name)
            self._push(now + STEP, "left", name)
        lines = {name for name in self._started if name in self._lines and name not in self._revoked}
        if self.policy.people_waiting > len(self._revoked) and lines:
            assert not self.policy.can_revoke
            self.waits += 1


BURSTS = {"dense": (1.0, 3.0, 30.0), "each 12 s": (12.0,), "rare": (60.0, 120.0)}


@pytest.mark.parametrize("pauses", BURSTS.values(), ids=BURSTS)
def test_little_work_is_lost_in_any_hour(pauses: tuple[float, ...]) -> None:
    """Bursts of 8, 16 and 40 requests reach an engine of 32 places that is full of long lines."""
    hours = Hours(random.Random(7), (5.0, 40.0), pauses)
    hours.run(2 * HOUR)
    assert hours.ended["lost"] > 10
    assert hours.ended["used"] > 500
    assert max(hours.hours) <= MOST_LOST


def test_people_never_wait_for_the_end_of_short_lines() -> None:
    hours = Hours(random.Random(7), (1.0, 10.0), BURSTS["rare"])
    hours.run(HOUR)
    assert hours.ended["lost"] > 100
    assert not hours.waits
