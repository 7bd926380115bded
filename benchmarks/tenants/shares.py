"""How evenly teams share a busy model: twenty teams with an adapter each, and three teams with different weights."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from benchmarks.harness import Bench
from benchmarks.load.clients import closed_loop
from benchmarks.load.workload import Workload
from benchmarks.models import chat
from benchmarks.peers.servers import start_all
from benchmarks.report.generated import write_adapters
from benchmarks.tenants.sharing import TOKENS, Keyed

MANY, AT_ONCE = 20, 4
WEIGHTS = {"one": 1.0, "two": 2.0, "four": 4.0}
WARM_UP = 2.0
BACKLOG = 64
"""Concurrent requests of each weighted team: twice the places. With only as many as places, a team whose requests ended
in the same step had fewer waiting than its share, and others got the places."""


async def run(bench: Bench) -> None:
    s = bench.settings
    many, seconds = s.pick(MANY, MANY, 3), s.pick(20.0, 20.0, 0.5)
    model = chat(s, s.work / "tenants-shares", device=many, host=many)
    teams = {f"team{number}": 1.0 for number in range(many)}
    workload = Workload(s.seed)
    with ExitStack() as stack:
        server = Keyed(model.recipe.id, s.work / "tenants-shares-server", model.file, {**teams, **WEIGHTS})
        start_all(stack, [server])
        for team, file in zip(teams, write_adapters(s.work / "tenants-adapters", model.path, many, 8), strict=True):
            body = {"name": team, "base": server.model, "source": {"path": str(file)}}
            headers = {"x-api-key": server.keys[team]}
            server.http.post("/v1/adapters", json=body, headers=headers).raise_for_status()
        evenness, off = [], []
        for _ in range(s.rounds):
            even = await _served(bench, server, workload, {team: team for team in teams}, AT_ONCE, seconds)
            evenness.append(sum(even) ** 2 / (len(even) * sum(tokens**2 for tokens in even)))
            part = await _served(bench, server, workload, dict.fromkeys(WEIGHTS, server.model), BACKLOG, seconds)
            due = [sum(part) * weight / sum(WEIGHTS.values()) for weight in WEIGHTS.values()]
            off.append(max(abs(got / right - 1) if right else 0.0 for got, right in zip(part, due, strict=True)))
    bench.figure("shares.jain", evenness, "")
    bench.figure("shares.weights_off", [100 * share for share in off], "%")
    bench.note(f"shares: {many} teams with an adapter each, and weights 1:2:4, over {seconds:.0f} s")


async def _served(
    bench: Bench, server: Keyed, workload: Workload, models: Mapping[str, str], at_once: int, seconds: float
) -> list[int]:
    """Return the tokens that each team received in so many seconds, while all teams always had requests waiting."""
    end = time.perf_counter() + WARM_UP + seconds

    def asks(team: str, model: str) -> Iterator[bytes]:
        while time.perf_counter() < end:
            yield server.request_of(team, workload.chat(model, tokens=TOKENS))

    cells = await asyncio.gather(*(closed_loop(server, asks(*pair), at_once) for pair in models.items()))
    for cell in cells:
        bench.count("shares", cell)
    begin = end - seconds  # before that, the team that came first had all places
    return [sum(begin < at <= end for reply in cell.good for at in reply.arrivals) for cell in cells]
