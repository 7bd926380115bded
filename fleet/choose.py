"""Choose at most two nodes for a request: one, and another if the first does not answer. Pure: no clock, no I/O.

A node itself chooses among its replicas. Choosing among nodes is the same problem, so it uses
`routing.replicas.choose_near`; this module selects a few candidates from all nodes.

| the request has              | candidates                                                                      |
|------------------------------|---------------------------------------------------------------------------------|
| an adapter that has a place  | of the nodes that hold it: the prompt's home, the next one, and four at random; |
| somewhere                    | and two at random of all that serve the model                                   |
| an adapter that has no place | the adapter's home, the next one, and three at random of all that serve it      |
| no adapter                   | the prompt's home, the next one, and three at random of all that serve it       |

1. A node whose newest report is older than REPORT_SECONDS, or that has another revision, is not a candidate.
2. Nor is one that takes SLOW times as long for a token as the fastest candidate, as long as another one would end the
   request sooner. One request in 64 ignores this rule, so that its speed is measured again.
3. Nor is one with far more work than the mean of the nodes that serve the model, unless all are that busy. So a busy
   adapter gets a place on one more node.
4. `choose_near` chooses among the others; the second try is the cheapest of the rest.
5. If no node is ready, nodes that are loading the model come first, then nodes where it sleeps, then the node to which
   the model's name hashes among all nodes, which may load it.

Two random candidates are enough: the better of two keeps the most loaded node close to the mean even with old reports,
while choosing the least loaded of all nodes would send everything to one node between two reports.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import Literal, NamedTuple

from fleet.index import NodeEntry, NodeGroup, fresh, position_of
from fleet.table import REPORT_SECONDS, ReportTable
from routing.replicas import Reason as ReplicaReason
from routing.replicas import ReplicaState, choose_near

STAGE_SECONDS = 0.15
"""Seconds to read an adapter into host memory."""
PLACE_SECONDS = 0.05
"""Seconds to move a staged adapter into a place."""
BUSY, SLACK = 1.02, 0.25
"""A node is busy if its work exceeds BUSY times the mean plus SLACK requests. In the simulation, lower values cost
adapter hits, and higher ones make requests wait."""
SLOW = 3.0
"""A node is slow if a token takes it more than this many times as long as the fastest. Full batches slow tokens down,
too, but by less."""
TRIES = 2

Reason = ReplicaReason | Literal["loading", "asleep", "home", "none"]


class FleetTarget(NamedTuple):
    """The weights that a request needs."""

    model: str
    revision: str = ""
    """The model's revision; empty for any."""
    digest: str | None = None
    """The adapter's digest."""
    draw: int = 0
    """64 random bits of the request, such as from its id."""


class NodeChoice(NamedTuple):
    tries: tuple[str, ...]
    reason: Reason
    candidates: Sequence[tuple[str, ReplicaState]] = ()
    """The replicas that were compared, for an explanation."""


def prefix_key(salt: str, digest: str | None, prefix: bytes) -> int:
    """Return the position of a prompt's beginning on the ring. prefix: from `routing.replicas.prefix_of`."""
    data = b"\0".join((salt.encode(), (digest or "").encode(), prefix))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def choose(target: FleetTarget, prefix: int | None, reports: ReportTable, now: float) -> Sequence[str]:
    """Return the nodes to try, best first, at most TRIES.

    Args:
        prefix: `prefix_key` of its prompt; None if its engine has no prefix cache.
    """
    return _decide(target, prefix, reports, now - REPORT_SECONDS).tries


def explain(target: FleetTarget, prefix: int | None, reports: ReportTable, now: float) -> NodeChoice:
    """Return the result of `choose` with its reason and the compared replicas."""
    decision = _decide(target, prefix, reports, now - REPORT_SECONDS)
    compared = zip((node.name for node in decision.nodes), decision.states, strict=False)
    return NodeChoice(tuple(decision.tries), decision.reason, list(compared))


class _Decision(NamedTuple):
    nodes: Sequence[NodeEntry]
    states: Sequence[ReplicaState]
    reason: Reason
    first: int = 0
    second: int = -1
    """Indexes of the tries; if `second` is negative, all nodes are tries."""

    @property
    def tries(self) -> Sequence[str]:
        if self.second < 0:
            return [node.name for node in self.nodes]
        return self.nodes[self.first].name, self.nodes[self.second].name


def _decide(target: FleetTarget, prefix: int | None, reports: ReportTable, oldest: float) -> _Decision:
    model, revision, digest, draw = target
    index = reports.index
    group = index.serving.get(model)
    if group is None:
        return _cold(model, reports, oldest)
    holders = None if digest is None else index.holding.get(digest)
    picks = _picks(group, holders, digest, prefix, draw)
    nodes = [node for node in dict.fromkeys(picks) if node.at >= oldest and model in node.loads]  # 1
    if revision:
        nodes = [node for node in nodes if node.loads[model].revision == revision]
    if len(nodes) < TRIES < len(group.nodes):
        nodes += [node for node in _others(group, model, revision, oldest, draw) if node not in nodes]
    if not nodes:
        return _cold(model, reports, oldest)
    if digest is None:
        states = [node.loads[model].state(0.0) for node in nodes]
    else:
        states = [node.loads[model].state(_swap_seconds(node, digest)) for node in nodes]
    if draw >> 58 and (slow := _slow(model, nodes, states)):  # 2
        nodes = [node for i, node in enumerate(nodes) if i not in slow]
        states = [state for i, state in enumerate(states) if i not in slow]
    most = BUSY * group.work / len(group.nodes) + SLACK
    works = [state[2] for state in states]
    if min(works) <= most < max(works):  # 3
        nodes = [node for node, work in zip(nodes, works, strict=True) if work <= most]
        states = [state for state in states if state[2] <= most]
    home = warm = -1
    if nodes[0] is picks[0] or nodes[0] is picks[1]:
        if digest is not None and holders is None:
            home = 0
        elif prefix is not None:
            warm = 0
    at, reason = choose_near(states, home, warm, nodes[0].loads[model].prefill)  # 4
    second, least = -1, inf
    for i, state in enumerate(states):
        cost = state[1] + state[3]
        if i != at and cost < least:
            second, least = i, cost
    return _Decision(nodes, states, reason, at, second)


def _others(group: NodeGroup, model: str, revision: str, oldest: float, draw: int) -> Sequence[NodeEntry]:
    """Return the first usable nodes from a random one on, if too few candidates are usable."""
    first = draw % len(group.nodes)
    around = (*group.nodes[first:], *group.nodes[:first])
    able = (node for node in around if node.at >= oldest and (not revision or node.loads[model].revision == revision))
    return list(islice(able, TRIES))


def _slow(model: str, nodes: Sequence[NodeEntry], states: Sequence[ReplicaState]) -> frozenset[int]:
    """Return the indexes of nodes that are so slow that another one would end the request sooner."""
    loads, starts = [node.loads[model] for node in nodes], [state[1] + state[3] for state in states]
    fastest = min((load.token_seconds for load in loads if load.token_seconds), default=0.0)
    is_slow = [load.token_seconds > SLOW * fastest for load in loads]
    if not any(is_slow):  # the usual case
        return frozenset()
    soonest = min(start for start, slow in zip(starts, is_slow, strict=True) if not slow)
    slow_nodes = [i for i, slow in enumerate(is_slow) if slow]
    extra = {i: loads[i].request_seconds * (1 - fastest / loads[i].token_seconds) for i in slow_nodes}
    return frozenset(i for i in slow_nodes if soonest <= starts[i] + extra[i])


def _swap_seconds(node: NodeEntry, digest: str) -> float:
    if digest in node.placed:
        return 0.0
    return PLACE_SECONDS if digest in node.staged else STAGE_SECONDS + PLACE_SECONDS


def _picks(
    group: NodeGroup, holders: NodeGroup | None, digest: str | None, prefix: int | None, draw: int
) -> list[NodeEntry]:
    """Return candidates by the table above, homes first. Some may be there twice."""
    nodes = group.nodes
    count = len(nodes)
    if holders is not None:
        near, held = holders.nodes, len(holders.nodes)
        first = holders.home(prefix) if prefix is not None else draw % held
        return [
            near[first],
            near[(first + 1) % held],
            near[(draw >> 12) % held],
            near[(draw >> 24) % held],
            near[(draw >> 18) % held],
            near[(draw >> 30) % held],
            nodes[(draw >> 36) % count],
            nodes[(draw >> 48) % count],
        ]
    if digest is not None:
        first = group.home(int(digest[7:23], 16))
    else:
        first = group.home(prefix) if prefix is not None else draw % count
    return [
        nodes[first],
        nodes[(first + 1) % count],
        nodes[(draw >> 12) % count],
        nodes[(draw >> 24) % count],
        nodes[(draw >> 36) % count],
    ]


def _cold(model: str, reports: ReportTable, oldest: float) -> _Decision:
    """Choose nodes by rule 5, if none is ready."""
    group, key = reports.index.warming.get(model), position_of(model)
    if group is not None:
        warming = fresh(group.nodes, oldest, group.home(key), len(group.nodes))
        warming.sort(key=lambda node: node.phases[model] != "loading")
        if warming:
            return _Decision(warming[:TRIES], (), "loading" if warming[0].phases[model] == "loading" else "asleep")
    every = reports.index.all
    homes = fresh(every.nodes, oldest, every.home(key), TRIES) if every.nodes else []
    return _Decision(homes, (), "home" if homes else "none")
