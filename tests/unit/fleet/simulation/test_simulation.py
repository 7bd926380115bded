"""Small fleets with every fault, and one of 64 nodes: invariants and figures."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from fleet.simulation.clock import VirtualClock
from fleet.simulation.figures import Figures, figures_of
from fleet.simulation.limits import WINDOW, SimLimits
from fleet.simulation.run import simulate
from fleet.simulation.scenario import Scenario, SimFault, read_scenario, scenario_of
from fleet.simulation.traffic import SimRequest
from fleet.simulation.world import World
from registry.errors import BadRequest

SMALL = Scenario(nodes=12, seconds=30.0, models=5, adapters=60, rack=3)
FAULTS = {
    "none": (),
    "node": (SimFault("node", 8.0, nodes=2, seconds=5.0),),
    "rack": (SimFault("rack", 8.0),),
    "cut": (SimFault("cut", 8.0, nodes=3, seconds=10.0),),
    "late": (SimFault("late", 8.0, nodes=12, seconds=15.0),),
    "slow": (SimFault("slow", 0.0, nodes=1),),
    "database": (SimFault("database", 5.0, seconds=15.0),),
    "placers": (SimFault("placers", 4.0), SimFault("rack", 8.0)),
    "upgrade": (SimFault("upgrade", 5.0, nodes=2),),
    "short cut": (SimFault("cut", 8.0, nodes=3, seconds=1.0), SimFault("cut", 12.0, nodes=3, seconds=4.0)),
    "cut rack": (SimFault("cut", 8.0, nodes=11, seconds=10.0), SimFault("rack", 8.0)),
}


def simulated(scenario: Scenario) -> tuple[World, Figures]:
    world = simulate(scenario)
    return world, figures_of(world)


@pytest.mark.parametrize("name", FAULTS)
def test_under_any_fault_nothing_is_lost_or_counted_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, ended_again = World.finish, list[SimRequest]()

    def count(world: World, request: SimRequest, outcome: str) -> None:
        ended_again.extend([request] if request.outcome else [])
        finish(world, request, outcome)

    monkeypatch.setattr(World, "finish", count)
    world, figures = simulated(msgspec.structs.replace(SMALL, faults=FAULTS[name]))
    ended = figures.answered + figures.refused + figures.failed + figures.broken
    open_ = sum(not request.outcome for request in world.requests)
    assert ended + open_ == figures.requests > 1000
    assert open_ <= 2 * SMALL.nodes * SMALL.at_once, "requests that still run at the end"
    assert figures.over_admitted == 0
    assert 0 < figures.limit_used <= 1
    assert not ended_again
    assert all(request.first > request.arrived for request in world.requests if request.outcome == "answered")
    if name != "cut rack":
        assert figures.answered > 0.9 * (figures.requests - figures.refused - open_)
    for node in world.nodes.values():
        assert sum(replica.held for replica in node.replicas.values()) <= SMALL.device_gib
    if name == "none":
        assert (figures.failed, figures.broken, figures.retried) == (0, 0, 0)
    if name in ("node", "rack", "cut"):
        assert figures.broken > 0, "answers that had begun end with an error"
    if name in ("rack", "cut"):
        assert figures.retried > 0, "requests without a first token are answered by another node"
    if name == "placers":
        assert figures.stopped_placers == 1


def test_a_node_ten_times_slower_gets_few_requests() -> None:
    scenario = Scenario(nodes=3, seconds=60.0, models=1, adapters=0, with_adapter=0.0, load=0.6, flood=0.0, fronts=1)
    world = World(scenario)
    world.nodes["node-2"].slowness = 10.0
    world.run()
    nodes = Counter(request.node for request in world.requests if request.arrived > 20.0)
    assert 0 < nodes["node-2"] < 0.04 * nodes.total(), "its speed is still measured"


def test_of_many_placers_one_remains() -> None:
    faults = (*(SimFault("placers", 4.0 + number) for number in range(3)), SimFault("rack", 8.0))
    world, figures = simulated(msgspec.structs.replace(SMALL, fronts=1, faults=faults))
    assert figures.stopped_placers == 3
    assert [placer.epoch for placer in world.placers if not placer.is_stopped] == [world.row.epoch]


def test_a_further_placer_knows_the_epoch_of_one_that_places() -> None:
    world = World(SMALL)
    world.add_placer()
    world.placers[0].is_stopped, world.placers[1].epoch = True, 7
    world.add_placer()
    assert world.placers[2].epoch == 7


def test_equal_seeds_give_equal_figures_and_others_different_ones() -> None:
    scenario = msgspec.structs.replace(SMALL, seconds=10.0, faults=(SimFault("node", 3.0),))
    assert simulated(scenario)[1] == simulated(scenario)[1]
    assert simulated(scenario)[1] != simulated(msgspec.structs.replace(scenario, seed=2))[1]


def test_sixty_four_nodes_for_a_minute() -> None:
    """Wide bounds, because 64 nodes for 50 models leave most models one replica. docs/fleet.md has figures of 1,000."""
    _, figures = simulated(Scenario())
    assert figures.failed == figures.broken == figures.over_admitted == 0
    assert figures.ttft_ratio <= 3
    assert figures.adapter_hits >= 0.75
    assert figures.load_ratio <= 1.6
    assert figures.limit_used == 1


@pytest.mark.parametrize("shape", ["bursts", "day"])
def test_arrivals_have_a_shape(shape: str) -> None:
    world, _ = simulated(msgspec.structs.replace(SMALL, shape=shape, seconds=20.0))
    early = sum(request.arrived < 2.0 for request in world.requests)
    middle = sum(10.0 <= request.arrived < 12.0 for request in world.requests)
    late = sum(14.0 <= request.arrived < 16.0 for request in world.requests)
    assert early > 1.5 * middle if shape == "bursts" else late < 0.8 * early


def test_a_clock_keeps_the_order_of_one_moment() -> None:
    clock, seen = VirtualClock(), list[object]()
    clock.after(1.0, seen.append, "b")
    clock.after(1.0, seen.append, "c")
    clock.after(0.5, lambda: clock.after(0.25, seen.append, "a"))
    clock.after(3.0, seen.append, "d")
    clock.run(2.0)
    assert (seen, clock.now) == (["a", "b", "c"], 2.0)


def test_limits_are_used_fully_and_never_exceeded() -> None:
    limits = SimLimits({"team": 100}, 10)
    admitted = sum(limits.admit(f"n{number % 10}", "team", number * 0.05) for number in range(1000))
    assert admitted == 100
    assert sum(limits.admit("n1", "team", WINDOW + number * 0.01) for number in range(200)) >= 100 - 100 // 8
    limits.is_away = True
    assert sum(limits.admit("n2", "team", 2 * WINDOW + number * 0.01) for number in range(200)) <= 100 // 8
    assert limits.over_admitted() == 0


def test_a_block_ends_with_its_window_while_the_database_is_away() -> None:
    limits = SimLimits({"team": 100}, 1)
    assert limits.admit("n1", "team", 0.0)
    limits.is_away = True
    limits.admit("n1", "team", WINDOW)
    limits.is_away = False
    assert sum(limits.admit("n1", "team", WINDOW + 1.0) for _ in range(200)) == 100
    assert limits.over_admitted() == 0


def test_a_fleet_that_has_lost_all_racks_may_lose_another_one() -> None:
    faults = (SimFault("rack", 0.5), SimFault("rack", 1.0))
    _, figures = simulated(Scenario(nodes=2, seconds=8.0, models=1, adapters=0, faults=faults))
    assert figures.failed > 0


def test_a_scenario_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: 9\nshape: bursts\nfaults:\n- {kind: cut, at: 5, seconds: 30, nodes: 2}\n")
    assert read_scenario(file) == Scenario(nodes=9, shape="bursts", faults=(SimFault("cut", 5.0, 30.0, 2),))
    assert scenario_of(1000).rack == 32
    assert scenario_of(1).rack == 1


@pytest.mark.parametrize(
    "text",
    ["nodes: 0", "nodes: 5000", "seconds: .inf", "colour: green", "faults: [{kind: fire, at: 1}]", "[", "\xff", "- 1"],
)
def test_an_invalid_scenario_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadRequest):
        read_scenario(file)


def test_the_process_prints_its_progress_and_one_object(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(msgspec.yaml.encode(msgspec.structs.replace(SMALL, seconds=2.0)))
    command = [sys.executable, "-m", "fleet.simulation"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True)
    *parts, last = map(json.loads, done.stdout.splitlines())
    assert [part["part"] for part in parts] == [step / 100 for step in range(1, 101)]
    assert msgspec.convert(last, Figures).nodes == 12
    for words in (["--nodes", "0"], [str(tmp_path / "none.yaml")], [], ["--nodes", "x"]):
        assert subprocess.run([*command, *words], capture_output=True).returncode == 2
