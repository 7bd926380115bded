"""Places of adapters in a simulated engine follow the real server's rules."""

from fleet.simulation.clock import VirtualClock
from fleet.simulation.nodes import SimNode
from fleet.simulation.replicas import CLOSE_SECONDS, SimReplica
from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest

SCENARIO = Scenario(nodes=1, models=1, adapters=3, places=1, at_once=2)
TIMES = SCENARIO.times
SHORT = 1.0


class Rig:
    """One node with one place for adapters."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.node = SimNode("node-1", 0, SCENARIO, self.clock)
        self.node.place_at_once({"m": 1})

    def arrive(self, digest: str | None, answer: int = 1) -> SimRequest:
        request = SimRequest(self.clock.now, "m", "team", 0.0, answer, 0)
        request.node = "node-1"
        request.digest = digest
        self.node.arrive(request)
        return request

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    @property
    def replica(self) -> SimReplica:
        return self.node.replicas["m"]


def test_a_request_during_its_adapters_staging_waits_for_it_and_is_no_hit() -> None:
    rig = Rig()
    first = rig.arrive("a")
    rig.run(TIMES.stage + TIMES.place / 2)
    second = rig.arrive("a")
    rig.run(SHORT)
    third = rig.arrive("a")
    rig.run(SHORT)
    assert [one.is_hit for one in (first, second, third)] == [False, False, True]
    settled = TIMES.stage + TIMES.place
    assert settled < first.first < second.first < settled + 2 * TIMES.step, "the second one runs beside another"
    assert first.began == TIMES.stage, "it uses no turn while its adapter is staged"


def test_a_place_gets_another_adapter_once_nothing_runs_in_it() -> None:
    rig = Rig()
    running = rig.arrive("a", answer=20)
    rig.run(TIMES.stage)
    other, base = rig.arrive("b"), rig.arrive(None)
    rig.run(SHORT)
    assert 0 < base.first < running.first + 20 * TIMES.step, "a request without an adapter does not wait"
    assert other.first > running.began + 19 * TIMES.step
    assert list(rig.replica.placed) == ["b"]
    assert list(rig.node.staged) == ["a", "b"]


def test_a_place_that_is_never_idle_is_closed_for_requests_that_wait_too_long() -> None:
    rig = Rig()
    rig.arrive("a", answer=30)
    rig.run(TIMES.stage + TIMES.place)
    blocked = rig.arrive("b")
    later = list[SimRequest]()
    for _ in range(20):
        rig.run(0.1)
        later.append(rig.arrive("a", answer=30))
    rig.run(60.0)
    since = TIMES.stage + TIMES.place
    assert since + CLOSE_SECONDS < blocked.first < since + CLOSE_SECONDS + 2.0
    assert all(one.first > 0 for one in later), "they get a place later"
    assert not rig.replica.closing


def test_requests_of_an_adapter_that_lost_its_place_bring_it_back() -> None:
    rig = Rig()
    rig.arrive("a", answer=100)
    rig.run(TIMES.stage + TIMES.place)
    rig.arrive("b")
    rig.run(TIMES.stage + CLOSE_SECONDS)
    waiting = rig.arrive("a")
    rig.run(60.0)
    assert waiting.first > 0


def test_a_cached_prompt_counts_only_where_its_answer_began() -> None:
    rig = Rig()
    request = rig.arrive(None)
    request.is_cached, request.prefix, request.shared = True, 1, 1.0  # on a node that was given up
    rig.node.stop()
    rig.node.start()
    rig.node.place_at_once({"m": 1})
    rig.node.arrive(request)
    assert not request.is_cached


def test_a_node_that_was_started_keeps_its_boot_when_another_fault_ends() -> None:
    rig = Rig()
    before = rig.node.report()
    rig.node.start()
    after = rig.node.report()
    assert (after.boot, after.seq) == (before.boot, before.seq + 1)


def test_a_model_that_is_needed_again_while_it_drains_is_loaded_again() -> None:
    rig = Rig()
    rig.arrive(None, answer=50)
    rig.node.follow(1, {"other": 1})
    rig.node.follow(2, {"m": 1})
    rig.run(60.0)
    assert {model: one.phase for model, one in rig.node.replicas.items()} == {"m": "ready"}


def test_a_model_that_waits_for_memory_may_leave_the_list() -> None:
    rig = Rig()
    rig.node.follow(1, {"m": 1, "large": SCENARIO.device_gib})
    rig.node.follow(2, {"small": 1})
    rig.run(60.0)
    assert set(rig.node.replicas) == {"small"}
