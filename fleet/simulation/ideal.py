"""The same requests in one ideal queue for each model: no hop, no swaps, perfect knowledge."""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest


def ideal_waits(
    scenario: Scenario, requests: Iterable[SimRequest], ready: Sequence[Mapping[str, int]]
) -> dict[int, float]:
    """Return seconds to the first token, by the request's id().

    It has the engines that were ready in the simulation. A step takes as long as at the mean load, every adapter has a
    place, and a shared prompt beginning is prefilled once.

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
