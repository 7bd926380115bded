"""Several replicas over only the policy, on a virtual clock: no request waits while a turn is free, and shares hold."""

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from runtime.scheduling.fair import Pool, QueueRequest
from runtime.scheduling.placement import Placement
from tests.unit.scheduling.simulator import Witness

STAGE, PLACE = 0.05, 0.02


@dataclass
class Fleet:
    """Replicas with witnesses, which fail at every illegal step of the policy."""

    witnesses: list[Witness]
    now: float = 0.0
    events: list[tuple[float, int, int, str, str]] = field(default_factory=list)
    claims: dict[str, tuple[QueueRequest, str | None, float]] = field(default_factory=dict)
    served: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    count: int = 0

    @classmethod
    def of(cls, replicas: int, places: int = 2, at_once: int = 3) -> "Fleet":
        policies = [Placement(places, 4 * places, at_once)]
        while len(policies) < replicas:
            policies.append(Placement(places, 4 * places, at_once, accounts=policies[0].line.accounts))
        for policy in policies:
            policy.others = tuple(other for other in policies if other is not policy)
        return cls([Witness(policy, places, 4 * places, at_once) for policy in policies])

    def ask(self, claim: QueueRequest, digest: str | None, seconds: float, replica: int) -> None:
        self.count += 1
        name = str(self.count)
        self.claims[name] = claim, digest, seconds
        witness = self.witnesses[replica]
        witness.waiting[name] = digest
        witness.policy.enqueue(name, digest, self.now, claim)
        self.decide(replica)

    def decide(self, replica: int) -> None:
        """Decide like `ModelQueue.pump`."""
        self.decide_own(replica)
        while self.witnesses[0].policy.waiting_for_model:
            free = [i for i, one in enumerate(self.witnesses) if not one.policy.is_away and not one.policy.is_full]
            if not any(self.decide_own(one) for one in free):
                return

    def decide_own(self, replica: int) -> bool:
        witness = self.witnesses[replica]
        if witness.policy.is_away:
            return False
        plan = witness.policy.decide(self.now)
        for name in plan.adopt:
            owner = next(one for one in self.witnesses if name in one.waiting)
            witness.waiting[name] = owner.waiting.pop(name)
        witness.obey(plan)
        for digest in plan.stage:
            self.push(STAGE, replica, "staged", digest)
        for digest, _ in plan.place:
            self.push(PLACE, replica, "placed", digest)
        for name in plan.start:
            claim, _, seconds = self.claims[name]
            self.served[claim.team] += claim.work
            self.push(seconds, replica, "end", name)
        if plan.wake_at is not None:
            self.push(plan.wake_at - self.now, replica, "wake", "")
        return bool(plan.start or plan.adopt)

    def push(self, after: float, replica: int, kind: str, what: str) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + max(1e-6, after), self.count, replica, kind, what))

    def step(self) -> str | None:
        """Process the next event, and return the request that it ended."""
        self.now, _, replica, kind, what = heapq.heappop(self.events)
        witness = self.witnesses[replica]
        if kind == "staged" and what in witness.staging:
            witness.finish_staging(what)
        elif kind == "placed" and what in witness.placing:
            witness.finish_placing(what, self.now)
        elif kind == "end":
            if what not in witness.running:
                return None  # its engine has died
            del witness.running[what]
            witness.policy.finish(what, self.now, self.claims[what][0].work)
        self.decide(replica)
        return what if kind == "end" else None

    def lose(self, replica: int) -> None:
        """Let a replica's engine die. Running requests are lost, waiting ones go to other replicas."""
        witness = self.witnesses[replica]
        witness.policy.reset()
        witness.policy.is_away = True
        for table in (witness.running, witness.staged, witness.staging, witness.placed, witness.placing):
            table.clear()
        alive = [i for i, witness in enumerate(self.witnesses) if not witness.policy.is_away]
        for name in list(witness.waiting) if alive else []:
            assert witness.policy.hand_over(name, self.witnesses[alive[0]].policy)
            self.witnesses[alive[0]].waiting[name] = witness.waiting.pop(name)
        for number in alive:
            self.decide(number)

    def open(self, replica: int) -> None:
        self.witnesses[replica].policy.is_away = False
        self.decide(replica)

    def check_free_turns(self) -> None:
        for one in self.witnesses:
            policy = one.policy
            if policy.is_away or policy.is_full:
                continue
            at_hand = {None, *(d for d in one.placed if d not in policy._device.closing)}
            for other in self.witnesses:
                assert not at_hand & set(other.waiting.values()), "it could run here at once"
                if other is not one and (other.policy.is_away or other.policy.is_full):
                    assert not other.waiting or len(one.running) + len(one.waiting) >= one.max_requests


@pytest.mark.parametrize("seed", range(4))
def test_no_request_waits_while_a_replica_could_run_it(seed: int) -> None:
    random_ = random.Random(seed)
    fleet = Fleet.of(random_.choice([2, 3, 5]))
    digests = [None, *(f"sha256:{n:064x}" for n in range(7))]
    size = len(fleet.witnesses)
    for _ in range(25_000):  # 100,000 for all seeds
        kind = random_.random()
        if kind < 0.4 and sum(len(w.waiting) for w in fleet.witnesses) < 60:
            claim = QueueRequest(random_.choice("abc"), work=random_.choice([1.0, 5.0]))
            fleet.ask(claim, random_.choice(digests), random_.expovariate(5.0), random_.randrange(size))
        elif kind < 0.401:
            fleet.lose(random_.randrange(size))
        elif kind < 0.41:
            fleet.open(random_.randrange(size))
        elif fleet.events:
            fleet.step()
        fleet.check_free_turns()
    for replica in range(size):
        fleet.open(replica)
    while fleet.events:
        fleet.step()
    assert not any(one.waiting or one.running for one in fleet.witnesses)
    accounts = fleet.witnesses[0].policy.line.accounts
    assert [accounts.waiting, accounts.of_team, accounts.pools] == [0, {}, {}]


@pytest.mark.parametrize("replicas", [2, 4])
def test_teams_share_all_replicas_by_weight(replicas: int) -> None:
    """The requests of each team are in the queue of another replica."""
    fleet, random_ = Fleet.of(replicas, places=0, at_once=4), random.Random(3)
    teams = {"flood": 1.0, "heavy": 3.0}
    homes = {"flood": 0, "heavy": replicas - 1}

    def ask(team: str) -> None:
        fleet.ask(QueueRequest(team, weight=teams[team]), None, random_.expovariate(5.0), homes[team])

    for team in teams:
        for _ in range(40):
            ask(team)
    for _ in range(4000):
        if (ended := fleet.step()) is not None:
            ask(fleet.claims[ended][0].team)
    assert (
        abs(fleet.served["heavy"] - 3 * fleet.served["flood"]) <= 4 * replicas * 4
    )  # except for what runs at once, by weight


def test_a_full_queue_makes_room_in_the_queue_of_another_replica() -> None:
    fleet = Fleet.of(2, places=0, at_once=1)
    for _ in range(6):
        fleet.ask(QueueRequest("flood"), None, 1.0, 1)
    newest = fleet.witnesses[0].policy.line.make_room(QueueRequest("quiet"))
    assert newest == max(fleet.witnesses[1].waiting, key=int)
    assert fleet.witnesses[0].policy.waiting_for_model == 3


def test_a_replica_takes_over_no_request_of_a_pool_that_it_has_filled() -> None:
    policies = [Placement(0, 0, 2, pools={"long": Pool(most=1)})]
    policies.append(Placement(0, 0, 2, pools={"long": Pool(most=1)}, accounts=policies[0].line.accounts))
    for policy, other in zip(policies, reversed(policies), strict=True):
        policy.others = (other,)
    for number, policy in enumerate(policies):
        policy.enqueue(f"long-{number}", None, 0.0, QueueRequest(pool="long"))
        assert policy.decide(0.0).start == (f"long-{number}",)
    policies[1].enqueue("short", None, 0.0)
    policies[1].decide(0.0)
    policies[1].enqueue("waits", None, 0.0, QueueRequest(pool="long"))
    assert policies[0].decide(0.0).adopt == ()


def test_a_free_turn_starts_the_first_request_of_all_lines() -> None:
    fleet = Fleet.of(4, at_once=1)
    for replica in range(4):
        fleet.ask(QueueRequest(), None, float(replica + 1), replica)
    oldest = str(fleet.count + 1)
    for replica in (2, 3, 1):
        fleet.ask(QueueRequest(), None, 1.0, replica)
    fleet.step()
    assert list(fleet.witnesses[0].running) == [oldest]
