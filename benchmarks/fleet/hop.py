"""What a front adds to a node's own answers, compared in turns with HAProxy in its place."""

import asyncio
import random
from collections.abc import Sequence

from benchmarks.fleet.crowds import Crowd
from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.pairs import compare
from benchmarks.peers import processes
from benchmarks.peers.servers import Server
from benchmarks.streams import paced_request

LEVELS = {1: (8, 5), 16: (32, 20), 64: (32, 40)}
"""By number of clients: mean tokens of an answer, and ms per token. Lengths vary to keep clients out of step."""
REQUESTS = {1: (150, 60), 16: (10, 4), 64: (6, 3)}
"""By number of clients: requests of each client per turn, in a full and a quick run."""
RATE, STREAMS, PAUSE_MS = 20, 500, 50
"""The crowd: tokens a second of each stream, number of streams, milliseconds per token."""
CORES_FOR = 10_000 * RATE
"""Tokens a second for which the needed cores are computed."""


async def first_tokens(bench: Bench, node: Server, others: Sequence[Server]) -> None:
    """Measure the TTFT that each of the others adds to the node's own, at LEVELS."""
    s = bench.settings
    for level, (tokens, pause) in LEVELS.items():
        chance = random.Random(s.seed)
        count = s.pick(*REQUESTS[level], 2)
        cells: dict[str, list[Cell]] = {server.name: [] for server in (node, *others)}
        for turn in range(s.pick(6, 2, 1)):
            lengths = [max(1, round(tokens * chance.uniform(0.5, 1.5))) for _ in range(level * (count + 1))]
            order = [node, *others]
            for server in order if turn % 2 == 0 else reversed(order):
                await bench.rest(order, server)
                requests = [paced_request(server.model, length, pause) for length in lengths]
                cell = await closed_loop(server, requests, level)
                bench.count(f"c{level} {server.name}", cell)
                # without each client's first request: those all begin at once
                later = sorted(cell.replies, key=lambda reply: reply.sent)[level:]
                cells[server.name].append(Cell(later, cell.wall, cell.cpu, cell.client_cpu))
        for name, turns in cells.items():
            good = [cell for cell in turns if cell.good]
            for q in (50, 99):
                bench.figure(f"hop.c{level}.{name}.ttft_p{q}", [cell.ttft_ms(q) for cell in good], "ms")
        for server in others:
            compare(bench, f"hop.c{level}.{server.name}", list(zip(cells[server.name], cells[node.name], strict=True)))


async def cpu_of_tokens(bench: Bench, node: Server, others: Sequence[Server]) -> None:
    """Measure the CPU time per token of a crowd's streams: of the node, and of each of the others in front of it."""
    s = bench.settings
    streams, seconds = s.pick(STREAMS, STREAMS, 20), s.pick(10.0, 5.0, 1.0)
    costs: dict[str, list[float]] = {server.name: [] for server in (node, *others)}
    rates: dict[str, list[float]] = {name: [] for name in costs}
    for turn in range(s.pick(3, 1, 1)):
        order = [node, *others]
        for server in order if turn % 2 == 0 else reversed(order):
            await bench.rest(order, server)
            async with Crowd([server], [server.model], streams, PAUSE_MS) as crowd:
                cpu, events, began = processes.cpu_seconds(server.pid), crowd.events, crowd.now
                await asyncio.sleep(seconds)
                cpu, events = processes.cpu_seconds(server.pid) - cpu, crowd.events - events
                rates[server.name].append(events / (crowd.now - began))
                if events:
                    costs[server.name].append(cpu / events * 1e6)
            crowd.count(bench, f"{streams} streams {server.name}")
    for name, values in costs.items():
        bench.figure(f"crowd.{name}.cpu_per_token", values, "µs")
        bench.figure(f"crowd.{name}.tokens_per_second", rates[name], "1/s")
    front = bench.figures.get(f"crowd.{others[0].name}.cpu_per_token")
    alone = bench.figures.get(f"crowd.{node.name}.cpu_per_token")
    peer = bench.figures.get("crowd.HAProxy.cpu_per_token")
    if front is not None and peer is not None and peer.value:
        bench.figure("crowd.over_haproxy", [front.value / peer.value], "x")
    if front is not None and alone is not None:
        bench.figure("crowd.front_cores", [front.value * CORES_FOR / 1e6], "cores")
        bench.figure("crowd.node_cores", [alone.value * CORES_FOR / 1e6], "cores")
