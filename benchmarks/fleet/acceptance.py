"""How many streams with 20 tokens a second each a machine with at least 16 cores carries, up to 10,000.

Runs as many pairs of a front and a node with the scripted engine as the cores allow, each with its own client process.
The number of streams per pair grows until some are lost, or fall below RATE, or there are 10,000 in all.

Physical limit: the event loops of a front, of a node and of its slot use one core each: about 1,000 such streams a
pair.
"""

import asyncio
import json
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import typer

from benchmarks.fleet.crowds import Crowd
from benchmarks.fleet.hop import PAUSE_MS, RATE
from benchmarks.fleet.servers import (
    CROWD_OPTIONS,
    CROWDS,
    PACED,
    Front,
    ScriptedNode,
    database,
    has_postgres,
    node_options,
    recipes,
)
from benchmarks.harness import Bench
from benchmarks.load.clients import on_loop
from benchmarks.peers import processes
from benchmarks.peers.servers import start_all
from registry.base.processor import cores

LEAST_CORES, CORES_OF_PAIR, MOST_PAIRS = 16, 3.5, 10
MOST = 10_000
MODULE = "benchmarks.fleet.acceptance"
STEPS = (250, 500, 750, 1000, 1250, 1500)
"""Numbers of streams per pair."""
CARRIED = 0.97
"""Share of the tokens that must arrive on time."""


async def run(bench: Bench) -> None:
    s = bench.settings
    if cores() < LEAST_CORES and not s.smoke:
        raise typer.BadParameter(
            f"this machine has {cores()} cores, but {LEAST_CORES} are needed; try a few streams with --smoke"
        )
    if not has_postgres():
        raise typer.BadParameter("PostgreSQL is not installed: apt-get install postgresql")
    pairs = 1 if s.smoke else min(MOST_PAIRS, int(cores() / CORES_OF_PAIR))
    folder = s.work / "fleet"
    with database(folder) as url, ExitStack() as stack:
        files = recipes(folder)
        names = [f"node-{number}" for number in range(pairs)]
        nodes = [ScriptedNode(name, folder, url, files, *node_options(len(files))) for name in names]
        fronts = [Front(f"front-{number}", folder, url, *CROWD_OPTIONS) for number in range(pairs)]
        start_all(stack, [*nodes, *fronts])
        for front in fronts:
            front.wait_for((*CROWDS, PACED), names)
        bench.say(f"{pairs} pairs are ready")
        pids = [server.pid for server in (*fronts, *nodes)]
        carried = 0
        for step in STEPS if not s.smoke else (10,):
            each = min(step, MOST // pairs)
            cpu = [processes.cpu_seconds(pid) for pid in pids]
            words = each, s.pick(20.0, 8.0, 1.0)
            crowds = await asyncio.gather(
                *(asyncio.to_thread(processes.figures_of, MODULE, front.port, *words) for front in fronts)
            )
            used = [processes.cpu_seconds(pid) - before for pid, before in zip(pids, cpu, strict=True)]
            tokens, rate = sum(crowd["tokens"] for crowd in crowds), sum(crowd["rate"] for crowd in crowds)
            lost, streams = sum(crowd["lost"] for crowd in crowds), each * pairs
            bench.counts[f"{streams} streams"] += streams
            bench.figure(f"s{streams}.tokens_per_second", [rate], "1/s")
            bench.figure(f"s{streams}.lost", [lost], "streams")
            bench.figure(f"s{streams}.front_cpu_per_token", [sum(used[:pairs]) / tokens * 1e6], "µs")
            bench.figure(f"s{streams}.node_cpu_per_token", [sum(used[pairs:]) / tokens * 1e6], "µs")
            if lost or rate < CARRIED * streams * RATE:
                break
            carried = streams
            if each < step:
                break
    bench.figure("carried", [carried], "streams")
    bench.bar(f"streams with {RATE} tokens a second", "carried", ">=", MOST)


async def _client(port: int, streams: int, seconds: float) -> dict[str, float]:
    """Run a crowd in this process.

    Returns `tokens` of the whole crowd, `rate` in tokens a second while all streams were open, and `lost` streams,
    which include those that could not be opened in time.
    """
    server = cast(Any, SimpleNamespace(port=port))
    async with Crowd([server], CROWDS, streams, PAUSE_MS) as crowd:
        events, began = crowd.events, crowd.now
        await asyncio.sleep(seconds)
        rate, tokens = (crowd.events - events) / (crowd.now - began), crowd.events
    return {"rate": rate, "tokens": tokens, "lost": crowd.lost + crowd.not_opened}


if __name__ == "__main__":
    print(json.dumps(on_loop(lambda: _client(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
