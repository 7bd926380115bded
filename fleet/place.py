"""Place models on nodes: a pure function from reports and demand to the desired replicas.

No I/O, no clock. Traffic, `explain` and the simulation use the same function. The code refers to these numbers:

1. Nodes count if they reported within LEASE_SECONDS and are not draining. A node that is away for less than
   RETURN_SECONDS stays in the plan: it keeps its models if it was only cut off, and gets them back if it had ended.
2. Existing replicas stay: those of the previous plan, and others that nodes report.
3. Placement by hand comes first: on the named nodes, or with the given number of replicas. Other models are removed for
   it, except those that were also placed by hand. A replica that can answer and is then too many stays until enough of
   the others can, so that requests need not wait while a model moves.
4. Each model gets its minimum number of replicas, in order of demand.
5. A model whose demand exceeds GROW of its replicas' capacity gets further replicas until it is below GOAL, on nodes
   with room and LEAST_HELP of a replica left. The model with the highest load comes first, which keeps the highest load
   low. A model with n replicas must keep the part SMALL / n of their capacity free, because with few replicas its
   requests have few nodes to choose from.
6. A model above HIGH gets a replica even if another model must be removed: the one that needs its replica least and
   stays below GOAL without it. The last replica leaves only while its demand is below IDLE. A model below its minimum
   number gets a replica in the same way.
7. Nothing that was moved is moved back within HOLD_SECONDS. For 6, a node gives up at most SWAPS_AN_HOUR models, and
   all nodes together only a few at a time (SWAP_PART). Placement by hand does not wait.
8. A replica is never removed only because it has little to do, but only by 3, 4 or 6, when another needs its memory.

A new replica is placed on the fullest node whose load then stays within EVEN times the mean, so that models fit
together and nodes are loaded evenly. If there is no such node, it is placed on the one with the lowest load.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from fleet.index import position_of
from fleet.reports import NodeReport
from fleet.table import ReportTable

LEASE_SECONDS = 10.0
RETURN_SECONDS = 600.0
HOLD_SECONDS = 60.0
HOUR = 3600.0
SWAPS_AN_HOUR = 1
"""A swap is two moves: one model is unloaded from a node, and another is loaded."""
SWAP_PART = 50
"""One swap in HOLD_SECONDS, plus one for each SWAP_PART nodes, because swapped replicas serve nothing while loading."""
GOAL, GROW, HIGH = 0.7, 0.85, 0.85
"""Demand per replica as a part of its capacity: the goal, the limit of an existing plan, and enough to swap."""
SMALL = 0.3
IDLE = 0.01
"""Demand of a model that gets no requests. Smoothed demand falls below it about two minutes after the last one."""
EVEN = 1.15
LEAST_HELP = 0.25
"""The smallest part of a device, left free by other models, that justifies a replica."""
Why = Literal["hand", "least", "demand", "room"]
THERE = frozenset(("ready", "loading", "asleep"))
ABLE = frozenset(("ready", "asleep"))
"""States in which a replica can answer, if only after a wake."""


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """What a model needs from the fleet."""

    model: str
    bytes: int
    """Bytes on each of its devices."""
    devices: int = 1
    """Number of devices that one replica runs on."""
    least: int = 1
    on: tuple[str, ...] = ()
    """Nodes named by hand."""
    replicas: int | None = None
    """Number of replicas set by hand; None to follow demand."""
    not_on: frozenset[str] = frozenset()
    """Nodes that have neither its files nor a source for them."""


class FleetMove(NamedTuple):
    model: str
    node: str
    action: Literal["load", "unload"]
    why: Why


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The desired replicas, and the moves towards them."""

    replicas: Mapping[str, tuple[str, ...]]
    """Nodes by model."""
    moves: tuple[FleetMove, ...] = ()
    """New moves since the previous plan."""
    unplaced: Mapping[str, str] = field(default_factory=dict)
    """Why a model has fewer replicas than it needs."""
    moved: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Time of the last move of a model to or from a node, within the last hour."""
    away: Mapping[str, float] = field(default_factory=dict)
    """Absent nodes, and since when."""


class _Node:
    """A node while a plan is made."""

    __slots__ = ("free", "given_up", "name", "where")

    def __init__(self, report: NodeReport) -> None:
        self.name = report.node
        self.free = {device.device: device.budget for device in report.devices}
        self.where: dict[str, tuple[str, ...]] = {}
        """Devices by model."""
        self.given_up = 0
        """Number of models that plans removed from it in the last hour."""

    def devices_for(self, need: ModelNeed) -> tuple[str, ...] | None:
        """Return the devices with the most free bytes, or None if there is no room."""
        best = tuple(sorted(self.free, key=lambda device: -self.free[device])[: need.devices])
        return best if len(best) == need.devices and self.free[best[-1]] >= need.bytes else None

    def hold(self, need: ModelNeed, devices: Iterable[str]) -> None:
        self.where[need.model] = tuple(device for device in devices if device in self.free)
        for device in self.where[need.model]:
            self.free[device] -= need.bytes

    def release(self, need: ModelNeed) -> None:
        for device in self.where.pop(need.model):
            self.free[device] += need.bytes


def place(
    models: Sequence[ModelNeed],
    reports: ReportTable,
    demand: Mapping[str, float],
    now: float,
    before: FleetPlan | None = None,
) -> FleetPlan:
    """Return the desired replicas.

    Args:
        demand: by model, in the number of fully busy replicas.
        before: the previous plan; None to start from the reported replicas only.
    """
    return _Planner(models, reports, demand, now, before or FleetPlan({})).plan()


class _Planner:
    def __init__(
        self,
        models: Sequence[ModelNeed],
        reports: ReportTable,
        demand: Mapping[str, float],
        now: float,
        before: FleetPlan,
    ) -> None:
        self._needs = {need.model: need for need in models}
        self._demand, self._now, self._before = demand, now, before
        self._moved = {key: at for key, at in before.moved.items() if now - at < HOUR}
        self._moves: list[FleetMove] = []
        self._unplaced: dict[str, str] = {}
        self._on: dict[str, set[str]] = {need.model: set() for need in models}
        self._able: dict[str, set[str]] = {need.model: set() for need in models}
        """Nodes by the models that can answer there."""
        self._nodes: dict[str, _Node] = {}
        for stored in reports:  # 1
            if now - stored.at <= LEASE_SECONDS and not stored.report.draining:
                self._nodes[stored.report.node] = _Node(stored.report)
        self._swaps = 0
        """Number of models that were removed from nodes within HOLD_SECONDS."""
        for model, name in self._moved:
            if name in self._nodes and name not in before.replicas.get(model, ()):
                self._nodes[name].given_up += 1
                self._swaps += now - self._moved[model, name] < HOLD_SECONDS
        devices = sum(len(node.free) for node in self._nodes.values())
        self._even = EVEN * sum(demand.get(model, 0.0) for model in self._needs) / max(1, devices)
        self._keep(reports)

    def plan(self) -> FleetPlan:
        for model in sorted(self._needs):
            need = self._needs[model]
            if need.on or need.replicas is not None:
                self._by_hand(need)
        by_demand = sorted(self._needs.values(), key=lambda need: (-self._demand.get(need.model, 0.0), need.model))
        for need in by_demand:
            self._fill(need)
        self._grow(by_demand)
        away = self._away()
        return FleetPlan(self._desired(away), tuple(self._moves), self._unplaced, self._moved, away)

    def _desired(self, away: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
        """Return nodes by model, including absent nodes, which keep their models (1)."""
        desired = {model: set(names) for model, names in self._on.items()}
        for model, names in self._before.replicas.items():
            need = self._needs.get(model)
            if need is None:
                continue
            for name in names:
                is_by_hand = name in need.on
                is_enough = need.replicas is not None and len(desired[model]) >= need.replicas
                if name in away and (is_by_hand or not (need.on or is_enough)):
                    desired[model].add(name)
        return {model: tuple(sorted(names)) for model, names in desired.items()}

    # --- existing replicas ------------------------------------------------------------------------------------------
    def _keep(self, reports: ReportTable) -> None:
        """Start with the models that nodes hold or had in the previous plan (2)."""
        planned = self._before.replicas
        for name, node in self._nodes.items():
            stored = reports.get(name)
            for replica in stored.report.replicas if stored else ():
                need = self._needs.get(replica.model)
                is_leaving = (replica.model, name) in self._moved and name not in planned.get(replica.model, ())
                if need is not None and replica.state in THERE and not is_leaving and replica.model not in node.where:
                    self._add(need, node, replica.devices or node.devices_for(need) or ())
                    if replica.state in ABLE:
                        self._able[need.model].add(name)
        for model, names in planned.items():
            for name in names:
                self._return(model, name)

    def _return(self, model: str, name: str) -> None:
        """Give a node a model of the previous plan, if it has room."""
        need, node = self._needs.get(model), self._nodes.get(name)
        if need is None or node is None or model in node.where or name in need.not_on:
            return
        if (devices := node.devices_for(need)) is not None:
            self._add(need, node, devices)

    def _away(self) -> dict[str, float]:
        """Return absent nodes of the previous plan, and since when."""
        absent = {name for names in self._before.replicas.values() for name in names if name not in self._nodes}
        since = {name: self._before.away.get(name, self._now) for name in sorted(absent)}
        return {name: at for name, at in since.items() if self._now - at < RETURN_SECONDS}

    # --- the rules --------------------------------------------------------------------------------------------------
    def _by_hand(self, need: ModelNeed) -> None:  # 3
        for name in need.on:
            node = self._nodes.get(name)
            if node is None:
                self._unplaced[need.model] = f"{name} is not there."
            elif name in need.not_on:
                self._unplaced[need.model] = f"{name} does not have its weights."
            elif need.model not in node.where and not self._make_room(need, node):
                self._unplaced[need.model] = f"{name} has no room for it."
        if need.replicas is None:
            return
        most, on, able_on = max(need.replicas, len(need.on)), self._on[need.model], self._able[need.model]
        while len(on) > most:
            extra = [self._nodes[name] for name in on - set(need.on) if name not in able_on or len(able_on & on) > most]
            if not extra:
                return
            self._move(need, max(extra, key=lambda node: (self._load(node), node.name)), "unload", "hand")
        while len(self._on[need.model]) < need.replicas:
            node, able = self._roomy(need, by_hand=True), self._by_load(need)
            if node is not None:
                self._move(need, node, "load", "hand")
            elif not any(self._make_room(need, one) for one in able):
                is_everywhere = not able and self._on[need.model]
                self._unplaced[need.model] = (
                    "each node that can load it has it." if is_everywhere else "no node has room for it."
                )
                return

    def _fill(self, need: ModelNeed) -> None:  # 4
        while len(self._on[need.model]) < need.least and need.replicas is None:
            node = self._roomy(need)
            if node is not None:
                self._move(need, node, "load", "least")
            elif not self._replace(need, "least"):
                self._unplaced.setdefault(need.model, "no node has room for it.")
                return

    def _grow(self, by_demand: Sequence[ModelNeed]) -> None:  # 5, 6
        shares = self._shares()
        least = GROW if self._before.replicas else GOAL
        able = [need for need in by_demand if need.replicas is None and self._need(need.model, shares) > least]
        while able:
            shares = self._shares()
            need = max(able, key=lambda need: (self._need(need.model, shares), need.model))
            share = shares[need.model]
            if self._need(need.model, shares) <= GOAL:
                return
            if (node := self._roomy(need, must_help=True)) is not None:
                self._move(need, node, "load", "demand")
            elif share <= HIGH or not self._replace(need, "demand"):
                able.remove(need)

    def _need(self, model: str, shares: Mapping[str, float]) -> float:
        """Return demand as a part of the usable capacity of a model's replicas (5)."""
        return shares[model] / (1 - SMALL / max(1, len(self._on[model])))

    def _shares(self) -> dict[str, float]:
        """Return each model's demand as a part of the capacity that other models leave its replicas."""
        parts = {model: self._part(model) for model in self._needs}
        rooms = dict.fromkeys(self._needs, 0.0)
        for node in self._nodes.values():
            load = sum(parts[model] for model in node.where)
            for model in node.where:
                rooms[model] += min(1.0, max(LEAST_HELP, len(node.free) - load + parts[model]))
        return {model: self._demand.get(model, 0.0) / (rooms[model] or 1.0) for model in self._needs}

    def _replace(self, need: ModelNeed, why: Literal["least", "demand"]) -> bool:
        """Replace the replica whose model needs it least by one of this model."""
        if why == "demand" and self._swaps >= 1 + len(self._nodes) // SWAP_PART:  # 7
            return False
        best: tuple[float, str, str] | None = None
        shares = self._shares()
        for node in self._nodes.values():
            if node.given_up >= SWAPS_AN_HOUR or not self._may_take(need, node):  # 7
                continue
            left = len(node.free) - self._load(node)
            for model, devices in node.where.items():
                other, count = self._needs[model], len(self._on[model])
                share = shares[model] * count / (count - 1) if count > 1 else 0.0 if shares[model] < IDLE else inf
                if (
                    self._may_leave(other, node)
                    and count > other.least
                    and (why == "least" or (share <= GOAL and left + self._part(model) >= LEAST_HELP))
                    and min((node.free[device] for device in devices), default=0) + other.bytes >= need.bytes
                    and len(devices) >= need.devices
                ):
                    best = min(best or (share, model, node.name), (share, model, node.name))
        if best is None:
            return False
        node = self._nodes[best[2]]
        self._move(self._needs[best[1]], node, "unload", "room")
        self._move(need, node, "load", why)
        return True

    def _make_room(self, need: ModelNeed, node: _Node) -> bool:
        """Load a model on a node, and remove others for it that were not placed by hand."""
        leaving = sorted(
            (self._needs[model] for model in node.where if not self._is_by_hand(self._needs[model], node)),
            key=lambda other: (self._share(other.model), other.model),
        )
        room = copy(node)
        room.free, room.where = dict(node.free), dict(node.where)
        count = 0
        while room.devices_for(need) is None and count < len(leaving):
            room.release(leaving[count])
            count += 1
        if room.devices_for(need) is None:
            return False
        for other in leaving[:count]:
            self._move(other, node, "unload", "room")
        self._move(need, node, "load", "hand")
        return True

    # --- nodes and moves --------------------------------------------------------------------------------------------
    def _roomy(self, need: ModelNeed, *, by_hand: bool = False, must_help: bool = False) -> _Node | None:
        """Return the best node with room, or None.

        Args:
            must_help: require at least LEAST_HELP of a replica left.
        """
        able = (
            node
            for node in self._nodes.values()
            if self._may_take(need, node, by_hand) and node.devices_for(need) is not None
        )
        part = self._part(need.model, 1)
        best = min(able, key=lambda node: self._rank(need, node, part), default=None)
        if best is not None and must_help and len(best.free) - self._load(best) < LEAST_HELP:
            return None
        return best

    def _by_load(self, need: ModelNeed) -> list[_Node]:
        able = (node for node in self._nodes.values() if self._may_take(need, node, by_hand=True))
        return sorted(able, key=lambda node: self._rank(need, node, self._part(need.model, 1)))

    def _rank(self, need: ModelNeed, node: _Node, part: float) -> tuple[bool, float, int, int]:
        devices = max(1, len(node.free))
        load = self._load(node) / devices
        fits = load + part / devices <= self._even
        return not fits, -load if fits else load, -sum(node.free.values()), position_of(f"{need.model} {node.name}")

    def _may_take(self, need: ModelNeed, node: _Node, by_hand: bool = False) -> bool:
        if need.model in node.where or node.name in need.not_on:
            return False
        return by_hand or self._now - self._moved.get((need.model, node.name), -HOUR) >= HOLD_SECONDS  # 7

    def _may_leave(self, other: ModelNeed, node: _Node) -> bool:
        if self._is_by_hand(other, node):
            return False
        return self._now - self._moved.get((other.model, node.name), -HOUR) >= HOLD_SECONDS  # 7

    def _is_by_hand(self, need: ModelNeed, node: _Node) -> bool:
        return node.name in need.on or need.replicas is not None

    def _share(self, model: str) -> float:
        """Return the demand per replica."""
        return self._demand.get(model, 0.0) / max(1, len(self._on[model]))

    def _part(self, model: str, more: int = 0) -> float:
        """Return the work per replica of a model, with `more` additional replicas."""
        return min(GOAL, self._demand.get(model, 0.0) / max(1, len(self._on[model]) + more))

    def _load(self, node: _Node) -> float:
        return sum(self._part(model) for model in node.where)

    def _add(self, need: ModelNeed, node: _Node, devices: Iterable[str]) -> None:
        node.hold(need, devices)
        self._on[need.model].add(node.name)

    def _move(self, need: ModelNeed, node: _Node, action: Literal["load", "unload"], why: Why) -> None:
        if action == "load":
            self._add(need, node, node.devices_for(need) or ())
        else:
            node.release(need)
            node.given_up += 1
            self._swaps += 1
            self._on[need.model].remove(node.name)
        self._moved[need.model, node.name] = self._now
        self._moves.append(FleetMove(need.model, node.name, action, why))
