"""The same requests in one ideal queue for each model: no hop, no swaps, and whatever is free is known at once."""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest


def ideal_waits(
    scenario: Scenario, requests: Iterable[SimRequest], ready: Sequence[Mapping[str, int]]
) -> dict[int, float]:
    """Seconds to the first token, by the request's identity.

    Its engines are those that were ready in the simulation; a step takes as long as at the mean load, each adapter has
    a place, and the beginning of a prompt is read once.

    Args:
        requests: in the order of their arrival.
        ready: replicas by model, second by second.
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
