"""Replicas and devices: the gain of a second replica, and the cost of choosing one.

- On the real server with the scripted engine: requests per second of two replicas over one, two servers in turn.
- On a virtual clock with the server's own policies (`benchmarks.devices.fleet`): how much longer, in steps of the
  engine, a team with twenty adapters waits during another team's flood over two replicas; and how often 40 adapters
  are in a place if two replicas have 24 places each and run at 70 % of their load.
- By itself: a choice among eight replicas.

Physical limit: two replicas do twice as much as one, until the gateway's core is full.
"""

import asyncio
import random
import time
from contextlib import ExitStack

from benchmarks.devices.fleet import STEP, digest_of, quiet_wait, warm_hits
from benchmarks.harness import Bench
from benchmarks.load.clients import closed_loop
from benchmarks.load.stats import percentile
from benchmarks.peers.servers import Server, start_all
from benchmarks.report.generated import write_model
from benchmarks.streams import Scripted, paced_request, scripted_recipe
from routing.replicas import ReplicaState, choose, keys_of

AT_ONCE, TOKENS, PAUSE_MS = 16, 20, 40


async def run(bench: Bench) -> None:
    s = bench.settings
    seconds = s.pick(300.0, 120.0, 10.0)
    seeds = range(s.seed, s.seed + s.rounds)
    bench.figure("choose.us", [_choice(s.pick(200_000, 50_000, 100)) for _ in range(s.rounds)], "us")
    bench.figure("hits.warm", [100 * warm_hits(seed, seconds) for seed in seeds], "%")
    added = []
    for seed in seeds:
        alone = percentile(quiet_wait(seed, seconds, flooded=False), 99)
        added.append((percentile(quiet_wait(seed, seconds, flooded=True), 99) - alone) / STEP)
    bench.figure("flood.queue_p99_added", added, "steps")
    await _two(bench)
    bench.bar("two replicas' requests/s over one's", "two.speedup", ">=", 1.95)
    bench.bar("a quiet team's queue during a flood of two replicas, p99 added", "flood.queue_p99_added", "<=", 1.0)
    bench.bar("a choice among eight replicas", "choose.us", "<=", 5.0)
    bench.bar("requests that find one of 40 adapters in a place", "hits.warm", ">=", 95.0)


def _choice(count: int) -> float:
    """Return the microseconds of a choice, without the keys, which are computed once per request."""
    rng = random.Random(1)
    states = [
        [ReplicaState(n, rng.choice([0.0, 0.1, 2.0]), rng.random() * 1e4, rng.choice([0.0, 0.2])) for n in range(1, 9)]
        for _ in range(64)
    ]
    keys = [keys_of({"prompt": str(n)}, "", digest_of(1, n)) for n in range(64)]
    began = time.perf_counter()
    for number in range(count):
        choose(states[number % 64], keys[number % 61], 0.1)
    return (time.perf_counter() - began) / count * 1e6


async def _two(bench: Bench) -> None:
    s = bench.settings
    weights = write_model(s.work / "tiny-model", hidden=128, ffn=256, layers=2)  # only their size is read
    servers: list[Server] = []
    for count in (1, 2):
        folder = s.work / f"devices-{count}"
        recipe = scripted_recipe(
            folder, "scripted", weights, batching={"max_requests": AT_ONCE}, replicas={"least": count}
        )
        server = Scripted("scripted", folder, [recipe], "--slots", str(count), "--no-prewarm", "--device", "cpu")
        server.name = f"{count} replicas"
        servers.append(server)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        start_all(stack, servers)
        await _until_ready(servers[1], 2)

        async def load(server: Server, _: int) -> float:
            clients = 6 * AT_ONCE
            requests = [paced_request("scripted", TOKENS, PAUSE_MS)] * (clients * s.pick(12, 6, 1))
            cell = await closed_loop(server, requests, clients)
            bench.count(server.name, cell)
            return cell.requests_per_second

        rates |= {name: list(rounds) for name, rounds in (await bench.turns(servers, load)).items()}
    for name, values in rates.items():
        bench.figure(f"{name[0]}.requests_per_second", values, "1/s")
    pairs = zip(rates["1 replicas"], rates["2 replicas"], strict=True)
    bench.figure("two.speedup", [two / single for single, two in pairs], "x")


async def _until_ready(server: Server, count: int) -> None:
    for _ in range(600):
        replicas = server.http.get("/v1/models/scripted").json()["replicas"]
        if sum(replica["state"] == "ready" for replica in replicas) == count:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{count} replicas were not ready within 60 s")
