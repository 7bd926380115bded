"""Run a simulation of a scenario."""

from collections.abc import Callable

from fleet.simulation.faults import FaultInjector
from fleet.simulation.scenario import Scenario
from fleet.simulation.world import World


def simulate(scenario: Scenario, on_progress: Callable[[float], None] = lambda _part: None) -> World:
    """Run a scenario to its end.

    Args:
        on_progress: called a hundred times with the completed part.
    """
    world = World(scenario, on_progress)
    FaultInjector(world, scenario.faults, scenario.seed)
    world.run()
    return world
