"""Inject faults into a simulation; see the table in `scenario.SimFault`."""

import random
from collections.abc import Sequence

from fleet.simulation.nodes import SimNode
from fleet.simulation.scenario import SimFault
from fleet.simulation.world import World

LATE_SECONDS = 5.0
SLOWNESS = 2.0
RESTART_SECONDS = 10.0
DRAIN_SECONDS = 30.0


class FaultInjector:
    def __init__(self, world: World, faults: Sequence[SimFault], seed: int) -> None:
        self._world, self._rng = world, random.Random(seed + 2)
        for fault in faults:
            world.clock.after(fault.at, getattr(self, f"_{fault.kind}"), fault)

    def _some(self, count: int) -> list[SimNode]:
        up = [node for node in self._world.nodes.values() if node.is_up and not node.is_cut]
        chosen = self._rng.sample(up, min(count, len(up)))
        self._world.touched |= {node.name for node in chosen}
        return chosen

    def _node(self, fault: SimFault) -> None:
        for node in self._some(fault.nodes):
            self._stop(node, is_dark=False)
            self._world.clock.after(fault.seconds, node.start)

    def _rack(self, fault: SimFault) -> None:
        racks = sorted({node.rack for node in self._world.nodes.values() if node.is_up})
        rack = self._rng.choice(racks) if racks else None
        for node in self._world.nodes.values():
            if node.rack == rack and node.is_up:
                self._world.touched.add(node.name)
                self._stop(node, is_dark=True)

    def _cut(self, fault: SimFault) -> None:
        for node in self._some(fault.nodes):
            node.is_cut = True
            self._world.cut(node)
            self._world.clock.after(fault.seconds, self._joined, node)

    def _joined(self, node: SimNode) -> None:
        node.is_cut = False
        self._world.send_desired(node)

    def _late(self, fault: SimFault) -> None:
        for node in self._some(fault.nodes):
            node.lateness = LATE_SECONDS
            self._world.clock.after(fault.seconds, setattr, node, "lateness", 0.0)

    def _slow(self, fault: SimFault) -> None:
        for node in self._some(fault.nodes):
            node.slowness = SLOWNESS

    def _database(self, fault: SimFault) -> None:
        self._world.limits.is_away = True
        self._world.clock.after(fault.seconds, setattr, self._world.limits, "is_away", False)

    def _upgrade(self, fault: SimFault) -> None:
        self._next(sorted(self._world.nodes), fault.nodes)

    def _next(self, names: list[str], count: int) -> None:
        """Drain and restart a few nodes, and then the next ones."""
        world, clock = self._world, self._world.clock
        for name in names[:count]:
            node = world.nodes[name]
            self._world.touched.add(name)
            if node.is_up:
                node.is_draining = True
                node.on_change(node)
                clock.after(DRAIN_SECONDS, self._stop, node, False)
                clock.after(DRAIN_SECONDS + RESTART_SECONDS, node.start)
        if names[count:]:
            clock.after(DRAIN_SECONDS + 2 * RESTART_SECONDS, self._next, names[count:], count)

    def _placers(self, fault: SimFault) -> None:
        self._world.add_placer()

    def _stop(self, node: SimNode, is_dark: bool) -> None:
        node.is_dark = is_dark
        self._world.stop(node)
