"""Part of `benchmarks.adapters.small`: gaps between other streams' tokens during swaps of adapters."""

import asyncio
import time
from collections.abc import Sequence
from itertools import chain, pairwise

from benchmarks.harness import Bench
from benchmarks.load.client import Reply, connect
from benchmarks.load.clients import TIMEOUT, Cell, ask_until
from benchmarks.load.stats import percentile
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import Server

STREAMS = 4
"""Base streams whose gaps are measured."""
TOKENS = 128
"""Tokens of a stream. Each kind waits for its running streams, which takes stock vLLM ten seconds in a storm."""
KINDS = ("alone", "base", "storm")
"""What disturbs the streams: nothing; a series of requests to the base; a series to adapters on disk."""


async def run(bench: Bench, servers: Sequence[Server], names: Sequence[str], label: str) -> None:
    """Record gap p50, p99 and the longest for each kind, and the longest in the storm over the undisturbed p99."""
    workload = Workload(bench.settings.seed + 1)
    seconds = bench.settings.pick(3.0, 3.0, 0.5)

    async def turn(server: Server, _: int) -> dict[str, list[float]]:
        # brings back what the kernel paged out during the other server's turn (`environment.pages_out`)
        await _gaps(bench, server, workload, names, "warm", seconds / 3)
        return {kind: await _gaps(bench, server, workload, names, kind, seconds) for kind in KINDS}

    for name, turns in (await bench.turns(servers, turn)).items():
        for kind in KINDS:
            key = f"{label}.{name}.{kind}"
            good = [turn[kind] for turn in turns if turn[kind]]
            bench.figure(f"{key}.gap_p50", [percentile(gaps, 50) * 1e3 for gaps in good], "ms")
            bench.figure(f"{key}.gap_p99", [percentile(gaps, 99) * 1e3 for gaps in good], "ms")
            bench.figure(f"{key}.gap_longest", [max(gaps) * 1e3 for gaps in good], "ms")
        both = [(turn["alone"], turn["storm"]) for turn in turns if turn["alone"] and turn["storm"]]
        longest = [max(storm) / percentile(alone, 99) for alone, storm in both]
        bench.figure(f"{label}.{name}.storm.longest_ratio", longest, "x")
        ratio = [percentile(storm, 99) / percentile(alone, 99) for alone, storm in both]
        bench.figure(f"{label}.{name}.storm.p99_ratio", ratio, "x")


async def _gaps(
    bench: Bench, server: Server, workload: Workload, names: Sequence[str], kind: str, seconds: float
) -> list[float]:
    """Return the streams' gaps in seconds that ended during the disturbance."""
    over = asyncio.Event()
    disturbing: list[Reply] = []

    def request() -> bytes:
        return workload.chat(server.model, tokens=TOKENS)

    tasks = [asyncio.create_task(ask_until(over, server, request)) for _ in range(STREAMS)]
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    if kind == "alone":
        await asyncio.sleep(seconds)
    else:
        connection = await connect(server.port)
        while time.perf_counter() - began < seconds and connection.open:
            model = server.model if kind == "base" else names[len(disturbing) % len(names)]
            disturbing.append(await connection.ask(workload.chat(model, tokens=1), TIMEOUT))
        connection.close()
    ended = time.perf_counter()
    over.set()
    streams = list(chain.from_iterable(await asyncio.gather(*tasks)))
    bench.count(f"storm {server.name} {kind} streams", Cell(streams))
    bench.count(f"storm {server.name} {kind} requests", Cell(disturbing))
    bench.series.setdefault(f"storm {server.name} {kind} requests per second", []).append(len(disturbing) / seconds)
    return [
        b - a for reply in streams if reply.error is None for a, b in pairwise(reply.arrivals) if began <= b <= ended
    ]
