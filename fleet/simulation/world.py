"""Nodes, fronts, placers and traffic on one clock."""

import random
from collections import Counter
from collections.abc import Callable

from fleet.demand import DemandMean, demand_of
from fleet.epochs import DesiredReplicas, may_follow, successor
from fleet.place import FleetPlan, ModelNeed, place
from fleet.reports import NodeReport
from fleet.simulation.clock import VirtualClock
from fleet.simulation.fronts import RESET_SECONDS, SILENT_SECONDS, SimFront
from fleet.simulation.limits import WINDOW, SimLimits
from fleet.simulation.nodes import GIB, SimNode
from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import FLOODER, SimRequest, SimTraffic
from fleet.table import ReportTable

REPORT_EVERY = 1.0
PLACE_EVERY = 5.0
WATCH_SECONDS = 0.5
"""Longest time for a changed row to reach a node."""
WARM_PART = 0.2
"""Part of the time at the start that figures omit, because places are still empty."""


class SimPlacer:
    """A server that places. It knows an epoch, and stops if the row has another one."""

    def __init__(self, epoch: int, plan: FleetPlan, demand: dict[str, float], now: float) -> None:
        self.epoch, self.plan, self.demand, self.is_stopped = epoch, plan, DemandMean(), False
        self.demand.take(demand, now)


class World:
    def __init__(self, scenario: Scenario, on_progress: Callable[[float], None] = lambda _part: None) -> None:
        self.scenario, self._on_progress = scenario, on_progress
        self.clock, self.traffic = VirtualClock(), SimTraffic(scenario)
        self._arrivals = self.traffic.arrivals()
        self._rng = random.Random(scenario.seed + 3)
        names = [f"node-{number + 1}" for number in range(scenario.nodes)]
        self.nodes = {
            name: SimNode(name, number // scenario.rack, scenario, self.clock) for number, name in enumerate(names)
        }
        capacity = int(self.traffic.rate * scenario.flood_limit * WINDOW)
        self.limits = SimLimits({FLOODER: capacity}, scenario.nodes)
        self.fronts = [
            SimFront(scenario, self.clock, self.nodes, self.limits, self.finish) for _ in range(scenario.fronts)
        ]
        self._front_of: dict[int, SimFront] = {}
        self.requests: list[SimRequest] = []
        self.moves: list[tuple[float, str, str]] = []
        """Time, model and node of each move by a plan."""
        self.ready: list[dict[str, int]] = []
        """Ready replicas of each model, second by second."""
        self.row = DesiredReplicas(0, {})
        self._needs = [ModelNeed(model, gib * GIB) for model, gib in self.traffic.gib.items()]
        for node in self.nodes.values():
            node.on_end, node.on_change = self._end, self._changed
        self._place_first()
        self.placers = [SimPlacer(self.row.epoch, self._plan, self._demand, 0.0)]
        self.stopped_placers = 0
        self.touched: set[str] = set()
        """Nodes that had a fault, so their load says nothing about balance."""

    # --- the run ----------------------------------------------------------------------------------------------------
    def run(self) -> None:
        seconds, clock = self.scenario.seconds, self.clock
        for node in self.nodes.values():
            self._send_report(node)
            clock.after(self._rng.random() * REPORT_EVERY, self._report, node)
        clock.after(PLACE_EVERY, self._place)
        self._sample()
        clock.after(WARM_PART * seconds, self._warm)
        self._next_arrival()
        for step in range(1, 101):
            clock.run(seconds * step / 100)
            self._on_progress(step / 100)

    def _next_arrival(self) -> None:
        request = next(self._arrivals, None)
        if request is not None:
            self.clock.after(request.arrived - self.clock.now, self._arrive, request)

    def _arrive(self, request: SimRequest) -> None:
        self._next_arrival()
        front = self.fronts[self._rng.randrange(len(self.fronts))]
        self.requests.append(request)
        self._front_of[id(request)] = front
        front.arrive(request)

    def _warm(self) -> None:
        for node in self.nodes.values():
            node.reset()

    def _sample(self) -> None:
        self.clock.after(1.0, self._sample)
        ready = Counter[str]()
        for node in self.nodes.values():
            if node.is_up and not node.is_cut and not node.is_draining:
                ready.update(model for model, replica in node.replicas.items() if replica.phase == "ready")
        self.ready.append(ready)

    # --- requests ---------------------------------------------------------------------------------------------------
    def _end(self, request: SimRequest) -> None:
        if request.outcome == "moved":
            request.outcome = ""
            self._front_of[id(request)].move(request)
        else:
            self.finish(request, "answered")

    def finish(self, request: SimRequest, outcome: str) -> None:
        request.outcome = outcome
        self._front_of.pop(id(request), None)

    # --- reports ----------------------------------------------------------------------------------------------------
    def _report(self, node: SimNode) -> None:
        self.clock.after(REPORT_EVERY, self._report, node)
        self._send_report(node)

    def _send_report(self, node: SimNode) -> None:
        if not node.is_up or node.is_cut:
            return
        report = node.report()
        for front in self.fronts:
            delay = self._rng.random() * node.lateness
            if delay:
                self.clock.after(delay, self._take, front.table, report)
            else:
                front.table.add(report, self.clock.now)

    def _take(self, table: ReportTable, report: NodeReport) -> None:
        table.add(report, self.clock.now)

    def _changed(self, node: SimNode) -> None:
        """Report a node's change at once, and send it the desired list after a start."""
        self._send_report(node)
        if not node.replicas and node.is_up and not node.is_draining:
            self.clock.after(WATCH_SECONDS, self.send_desired, node)

    # --- lost nodes -------------------------------------------------------------------------------------------------
    def stop(self, node: SimNode) -> None:
        after = SILENT_SECONDS if node.is_dark else RESET_SECONDS
        self._give_up(node, node.stop(), after)

    def cut(self, node: SimNode) -> None:
        """Cut a node off. Its requests go on, but it sends nothing back."""
        self._give_up(node, list(node.under_way.values()), SILENT_SECONDS)

    def _give_up(self, node: SimNode, requests: list[SimRequest], after: float) -> None:
        for request in requests:
            front = self._front_of.get(id(request))
            if front is not None:
                self.clock.after(after, front.give_up, request, node.name)

    # --- placement --------------------------------------------------------------------------------------------------
    def _place_first(self) -> None:
        """Start with a plan for the mean demand, and with its models loaded."""
        table = ReportTable()
        for node in self.nodes.values():
            table.add(node.report(), 0.0)
        slots = self.scenario.load * self.scenario.nodes * self.scenario.devices
        demand = {model: slots * weight for model, weight in self.traffic.weights.items()}
        self._plan = FleetPlan(place(self._needs, table, demand, 0.0).replicas)
        self._demand = demand
        self._write(DesiredReplicas(1, self._plan.replicas))
        for node in self.nodes.values():
            node.place_at_once(self._desired.get(node.name, {}))

    def _write(self, row: DesiredReplicas) -> None:
        self.row = row
        self._desired = dict[str, dict[str, int]]()
        for model, names in row.replicas.items():
            for name in names:
                self._desired.setdefault(name, {})[model] = self.traffic.gib[model]

    def add_placer(self) -> None:
        """Add a further placer that knows the same epoch."""
        first = next(placer for placer in self.placers if not placer.is_stopped)
        self.placers.append(SimPlacer(first.epoch, first.plan, first.demand.by_model, self.clock.now))

    def _place(self) -> None:
        self.clock.after(PLACE_EVERY, self._place)
        for number, placer in enumerate(self.placers):
            front = self.fronts[number % len(self.fronts)]
            placer.demand.take(demand_of(front.table, self.clock.now), self.clock.now)
            if self.limits.is_away or placer.is_stopped:
                continue
            plan = place(self._needs, front.table, placer.demand.by_model, self.clock.now, placer.plan)
            if plan.moves or plan.replicas != self.row.replicas:
                row = successor(self.row, placer.epoch, plan.replicas)
                if row is None:
                    placer.is_stopped = True
                    self.stopped_placers += 1
                    continue
                self._write(row)
                placer.epoch = row.epoch
                self.moves += [(self.clock.now, move.model, move.node) for move in plan.moves]
                for node in self.nodes.values():
                    self.clock.after(self._rng.random() * WATCH_SECONDS, self.send_desired, node)
            placer.plan = plan

    def send_desired(self, node: SimNode) -> None:
        if node.is_up and not node.is_cut and not node.is_draining and may_follow(node.epoch, self.row):
            desired = self._desired.get(node.name, {})
            if node.epoch != self.row.epoch or not node.replicas:
                node.follow(self.row.epoch, desired)
