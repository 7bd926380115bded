"""Results of a simulation."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest
from fleet.simulation.world import WARM_PART, World

HOUR = 3600.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    seconds: float
    seed: int
    requests: int
    answered: int
    refused: int
    """Requests refused by a limit."""
    failed: int
    """Requests that got no answer from any node."""
    broken: int
    """Requests that ended in an error event after the first byte."""
    retried: int
    """Requests that were answered after more than one attempt."""
    ttft_p50: float
    ttft_p99: float
    ideal_p50: float
    ideal_p99: float
    ttft_ratio: float
    """TTFT p99 divided by that of the ideal queue."""
    adapter_hits: float
    """Part of requests with an adapter whose adapter was in a place."""
    prefix_hits: float
    load_ratio: float
    """Highest work of a node divided by the mean, over nodes without faults."""
    moves: int
    """Loads and unloads by plans, without the initial loads and those after restarts."""
    moves_node_hour: float
    over_admitted: int
    limit_used: float
    """Part of the flooder's limit that was admitted in its fullest window."""
    stopped_placers: int
    epoch: int


def figures_of(world: World) -> Figures:
    """Compute figures. Times and hits omit requests that arrived in the first WARM_PART of the time."""
    one = world.scenario
    outcomes = Counter(request.outcome for request in world.requests)
    counted = [request for request in world.requests if request.outcome != "refused"]
    ideal = ideal_waits(one, counted, world.ready)
    warm = [request for request in counted if request.arrived >= WARM_PART * one.seconds and request.first >= 0]
    waits = sorted(request.first + one.times.hop - request.arrived for request in warm)
    ideals = sorted(ideal[id(request)] for request in warm)
    adapters = [request for request in warm if request.digest is not None]
    prefixes = [request for request in warm if request.shared]
    since = WARM_PART * one.seconds
    works = [node.mean_work(since) for node in world.nodes.values() if node.name not in world.touched]
    mean = sum(works) / max(1, len(works))
    limit = max(world.limits.admitted.values(), default=0) / max(1, world.limits.capacity)
    return Figures(
        nodes=one.nodes,
        seconds=one.seconds,
        seed=one.seed,
        requests=len(world.requests),
        answered=outcomes["answered"],
        refused=outcomes["refused"],
        failed=outcomes["failed"],
        broken=outcomes["broken"],
        retried=sum(request.attempts > 1 and request.outcome == "answered" for request in world.requests),
        ttft_p50=_part(waits, 0.5),
        ttft_p99=_part(waits, 0.99),
        ideal_p50=_part(ideals, 0.5),
        ideal_p99=_part(ideals, 0.99),
        ttft_ratio=_ratio(_part(waits, 0.99), _part(ideals, 0.99)),
        adapter_hits=_ratio(sum(request.is_hit for request in adapters), len(adapters)),
        prefix_hits=_ratio(sum(request.is_cached for request in prefixes), len(prefixes)),
        load_ratio=_ratio(max(works, default=0.0), mean),
        moves=len(world.moves),
        moves_node_hour=round(len(world.moves) / one.nodes * HOUR / one.seconds, 3),
        over_admitted=world.limits.over_admitted(),
        limit_used=round(limit, 4),
        stopped_placers=world.stopped_placers,
        epoch=world.row.epoch,
    )


def _part(values: Sequence[float], part: float) -> float:
    """Return a quantile of sorted values; 0 if there are none."""
    return round(values[min(len(values) - 1, int(part * len(values)))], 4) if values else 0.0


def _ratio(value: float, other: float) -> float:
    return round(value / other, 4) if other else 0.0


def ideal_waits(
    scenario: Scenario, requests: Iterable[SimRequest], ready: Sequence[Mapping[str, int]]
) -> dict[int, float]:
    """Return seconds to the first token in one ideal queue for each model, by the request's id().

    No hop, no swaps, perfect knowledge. It has the engines that were ready in the simulation. A step takes as long as
    at the mean load, every adapter has a place, and a shared prompt beginning is prefilled once.

    Args:
        requests: in the order of their arrival.
        ready: ready replicas by model, second by second.
    """
    times = scenario.times
    step = times.step + times.step_more * scenario.at_once * scenario.load
    free: dict[str, list[float]] = {}
    known = set[int]()
    waits = {}
    for request in requests:
        model, now = request.model, request.arrived
        slots = max(1, ready[min(int(now), len(ready) - 1)].get(model, 0)) * scenario.at_once
        line = free.setdefault(model, [])
        while len(line) < slots:
            heapq.heappush(line, now)
        while len(line) > slots:
            heapq.heappop(line)
        prompt = request.prompt
        if request.prefix is not None:
            if request.prefix in known:
                prompt -= request.shared
            known.add(request.prefix)
        start = max(now, line[0])
        first = start + prompt / times.prompt_rate + step
        heapq.heapreplace(line, first + (request.answer - 1) * step)
        waits[id(request)] = first - now
    return waits
