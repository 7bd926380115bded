"""An index of nodes by model and adapter, updated by reports, so that a choice reads only a few nodes."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from fleet.reports import NodeReport, ReplicaPhase, ReplicaReport
from routing.replicas import ReplicaState

HOMES = 8
"""Nodes on the ring among which a key's home is chosen."""
MIX, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
"""Fibonacci hashing of 64 bits."""
UNKNOWN_SECONDS = 1.0
"""Assumed duration of a request before any has ended."""


class ReplicaLoad:
    """The load of one node's replicas of a model: the report, plus requests sent since then."""

    __slots__ = (
        "beside", "devices", "free", "near", "prefill", "request_seconds", "revision", "sent", "start", "token_seconds",
        "turn", "work",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sent: list[float] = []
        """Times at which this server sent requests that are not in the newest report yet."""
        self.near: list[float] = []
        """The same for other models on the same devices."""
        self.beside = 0
        """Work of other models on the same devices, which slow each other down."""

    def take(self, report: ReplicaReport, beside: int, at: float) -> None:
        """Replace the load by a report made at `at`."""
        self.revision, self.prefill, self.start = report.revision, report.prefill_seconds, report.start_seconds
        self.work, self.beside, self.devices = report.running + report.waiting, beside, report.devices
        if report.start_seconds > 0:
            self.work = max(self.work, report.capacity)
        self.free = report.capacity - self.work
        self.request_seconds, self.token_seconds = report.request_seconds, report.token_seconds
        self.turn = (report.request_seconds or UNKNOWN_SECONDS) / report.capacity
        self.sent = [sent for sent in self.sent if sent > at]
        self.near = [sent for sent in self.near if sent > at]

    @property
    def total(self) -> int:
        """Requests on its devices; at least the capacity if a further one would have to wait."""
        return self.work + self.beside + len(self.sent) + len(self.near)

    def state(self, swap: float) -> ReplicaState:
        """Return the state for a new request.

        Args:
            swap: seconds until its adapter has a place.
        """
        sent = len(self.sent)
        start = 0.0
        if sent >= self.free:
            start = self.start + (sent - max(0, self.free) + (self.start <= 0)) * self.turn
        return ReplicaState(0, start, self.work + self.beside + sent + len(self.near), swap)


class NodeEntry:
    """A node in the index."""

    __slots__ = ("adapters", "at", "loads", "name", "phases", "placed", "position", "staged")

    def __init__(self, name: str) -> None:
        self.name, self.position = name, position_of(name)
        self.at = 0.0
        """Time at which its newest report was made."""
        self.loads: dict[str, ReplicaLoad] = {}
        """Load by model, for models that are ready."""
        self.phases: Mapping[str, ReplicaPhase] = {}
        """Phase by model, for models that are loading or asleep."""
        self.adapters: tuple[Sequence[str], Sequence[str]] = (), ()
        """Placed and staged adapters, as in its newest report."""
        self.placed: frozenset[str] = frozenset()
        self.staged: frozenset[str] = frozenset()


class NodeGroup:
    """Nodes ordered by their positions on a ring, on which each key has a home among the next nodes.

    When a node joins or leaves, few keys move except to or from it.
    """

    __slots__ = ("nodes", "positions", "work")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.nodes: list[NodeEntry] = []
        self.work = 0
        """Total work of the nodes."""

    def add(self, node: NodeEntry) -> None:
        at = bisect_left(self.positions, node.position)
        self.positions.insert(at, node.position)
        self.nodes.insert(at, node)

    def remove(self, node: NodeEntry) -> None:
        at = self.nodes.index(node, bisect_left(self.positions, node.position))
        del self.positions[at], self.nodes[at]

    def home(self, key: int) -> int:
        """Return the index of a key's home; requires at least one node.

        It is the node with the highest pseudo-random weight for the key among the next HOMES nodes. The next node alone
        would be uneven: in some fleets of three, one node would be the home of four keys in five.
        """
        positions = self.positions
        count = len(positions)
        first = home = bisect_left(positions, key) % count
        most = -1
        for at in range(first, first + min(HOMES, count)):
            weight = (positions[at % count] ^ key) * MIX & MASK
            if weight > most:
                most, home = weight, at % count
        return home


class NodeIndex:
    """Groups of nodes by model and by adapter."""

    def __init__(self) -> None:
        self.entries: dict[str, NodeEntry] = {}
        self.all = NodeGroup()
        """Every node that accepts requests."""
        self.serving: dict[str, NodeGroup] = {}
        """Nodes by model that is ready there."""
        self.warming: dict[str, NodeGroup] = {}
        """Nodes by model that is loading or asleep there, but not ready."""
        self.holding: dict[str, NodeGroup] = {}
        """Nodes by adapter that has a place there, by its digest."""

    def take(self, report: NodeReport, at: float) -> None:
        """Update the index by a node's newest report."""
        if report.draining:
            self.remove(report.node)
            return
        node = self.entries.get(report.node)
        if node is None:
            node = self.entries[report.node] = NodeEntry(report.node)
            self.all.add(node)
        node.at = at
        ready = {replica.model: replica for replica in report.replicas if replica.state == "ready" and replica.ready}
        for model in node.loads.keys() - ready.keys():
            self.serving[model].work -= node.loads.pop(model).total
            _leave(self.serving, (model,), node)
        for model, replica in ready.items():
            load = node.loads.get(model)
            if load is None:
                load = node.loads[model] = ReplicaLoad()
                _join(self.serving, (model,), node)
                before = 0
            else:
                before = load.total
            load.take(replica, _beside(replica, report.replicas) if len(report.replicas) > 1 else 0, at)
            self.serving[model].work += load.total - before
        phases = {
            replica.model: replica.state
            for replica in report.replicas
            if replica.state in ("loading", "asleep") and replica.model not in ready
        }
        if phases != node.phases:
            _leave(self.warming, node.phases.keys() - phases.keys(), node)
            _join(self.warming, phases.keys() - node.phases.keys(), node)
            node.phases = phases
        if (report.placed, report.staged) != node.adapters:
            node.adapters = report.placed, report.staged
            placed = frozenset(report.placed)
            _leave(self.holding, node.placed - placed, node)
            _join(self.holding, placed - node.placed, node)
            node.placed, node.staged = placed, frozenset(report.staged)

    def remove(self, name: str) -> None:
        node = self.entries.pop(name, None)
        if node is None:
            return
        self.all.remove(node)
        for model, load in node.loads.items():
            self.serving[model].work -= load.total
        _leave(self.serving, node.loads, node)
        _leave(self.warming, node.phases, node)
        _leave(self.holding, node.placed, node)

    def count_sent(self, name: str, model: str, now: float) -> None:
        """Count a sent request until a report includes it."""
        node = self.entries.get(name)
        load = node.loads.get(model) if node is not None else None
        if node is None or load is None:
            return
        load.sent.append(now)
        self.serving[model].work += 1
        for other, beside in node.loads.items():
            if other != model and _share_devices(beside.devices, load.devices):
                beside.near.append(now)
                self.serving[other].work += 1


def position_of(text: str) -> int:
    """Return a node's or key's position on a ring: 64 bits, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _join(groups: dict[str, NodeGroup], names: Iterable[str], node: NodeEntry) -> None:
    for name in names:
        group = groups.get(name)
        if group is None:
            group = groups[name] = NodeGroup()
        group.add(node)


def _leave(groups: dict[str, NodeGroup], names: Iterable[str], node: NodeEntry) -> None:
    for name in names:
        group = groups[name]
        group.remove(node)
        if not group.nodes:
            del groups[name]


def _beside(replica: ReplicaReport, others: Iterable[ReplicaReport]) -> int:
    """Return the work of other models on a replica's devices."""
    return sum(
        other.running + other.waiting
        for other in others
        if other is not replica and _share_devices(other.devices, replica.devices)
    )


def _share_devices(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether two replicas may share a device; one without devices may be on any."""
    return not some or not others or not frozenset(some).isdisjoint(others)


def fresh(nodes: Sequence[NodeEntry], oldest: float, first: int, most: int) -> list[NodeEntry]:
    """Return up to `most` nodes with a recent report, from index `first` on around the ring."""
    result: list[NodeEntry] = []
    for step in range(len(nodes)):
        node = nodes[(first + step) % len(nodes)]
        if node.at >= oldest:
            result.append(node)
            if len(result) == most:
                break
    return result
