"""A fleet: what the hop costs, the gain of a second node, and the speed of names, adapters and choices.

On two nodes with the scripted engine and two fronts with the run's own PostgreSQL, all on this machine:
- first tokens at 1, 16 and 64 clients: what a front adds to a node's own, what HAProxy 2.6 adds in its place (with TLS
  1.3 to the same port of the same node, both sides verified), and what a minimal proxy of a front's libraries adds;
- CPU time per token of the node, the front and HAProxy with 500 streams of 20 tokens a second each, and the cores that
  10,000 such streams would need;
- tokens a second of two nodes over one, with an engine that takes 40 ms per token;
- streams of a token a second over two fronts and two nodes: streams lost, and a front's memory per stream.

Apart from these servers: a changed alias on sixteen fronts; an adapter of 46 MB from a peer over 1 Gbit/s; a choice
among 1,000 nodes, and what 1,000 reports a second cost; the simulation of 1,000 nodes.

Physical limit: a request crosses two more sockets and one TLS record each way; each token needs one read, one write and
their decryption, some 20 µs without Python.
"""

import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks.fleet import copies, hop, names, policies, simulated, streams
from benchmarks.fleet.bare import BareProxy
from benchmarks.fleet.servers import (
    CROWD_OPTIONS,
    CROWDS,
    PACED,
    Front,
    HaProxy,
    ScriptedNode,
    database,
    has_haproxy,
    has_postgres,
    node_options,
    recipes,
)
from benchmarks.harness import Bench
from benchmarks.peers.servers import start_all

NODES = ("node-1", "node-2")


async def run(bench: Bench) -> None:
    """Run all parts. A part that raises counts as a failure, and the others still run."""
    if has_postgres():
        await _guarded(bench, "servers", _servers)
        await _guarded(bench, "names", names.run)
        await _guarded(bench, "copies", copies.run)
    else:
        bench.note("servers, names and copies were not measured: apt-get install postgresql")
    await _guarded(bench, "policies", policies.run)
    await _guarded(bench, "simulation", simulated.run)
    _bars(bench)


async def _guarded(bench: Bench, name: str, part: Callable[[Bench], Awaitable[None]]) -> None:
    try:
        await part(bench)
    except Exception as error:
        traceback.print_exc()
        bench.failures[f"{name}: {type(error).__name__}: {error}"[:300]] += 1


async def _servers(bench: Bench) -> None:
    s = bench.settings
    folder = s.work / "fleet"
    with database(folder) as url, ExitStack() as stack:
        files = recipes(folder)
        nodes = [ScriptedNode(name, folder, url, files, *node_options(len(files))) for name in NODES]
        fronts = [Front(name, folder, url, *CROWD_OPTIONS) for name in ("front-1", "front-2")]
        start_all(stack, [*nodes, *fronts])
        for front in fronts:
            front.wait_for((*CROWDS, PACED), NODES)
        bench.say("the servers are ready")
        peers = []
        if has_haproxy():
            certificates = nodes[0].folder / "data" / "fleet"
            peers.append(stack.enter_context(HaProxy(nodes[0], folder / "haproxy", certificates)))
        else:
            bench.note("HAProxy was not measured: apt-get install haproxy")
        streams.set_draining(fronts[0], nodes[1], True)  # so that all requests reach the same node
        others = [fronts[0], *peers]
        bare = stack.enter_context(BareProxy(nodes[0], folder / "bare", nodes[0].folder / "data" / "fleet"))
        await _guarded(bench, "first tokens", lambda bench: hop.first_tokens(bench, nodes[0], [*others, bare]))
        await _guarded(bench, "CPU of tokens", lambda bench: hop.cpu_of_tokens(bench, nodes[0], others))
        streams.set_draining(fronts[0], nodes[1], False)
        await _guarded(bench, "two nodes", lambda bench: streams.two_nodes(bench, fronts[0], nodes[0], nodes[1]))
        await _guarded(bench, "slow streams", lambda bench: streams.slow(bench, fronts, nodes))


def _bars(bench: Bench) -> None:
    for level in hop.LEVELS:
        bench.bar(f"TTFT p50 added by a front, {level} streams", f"hop.c{level}.front-1.ttft_p50_added", "<=", 1.0)
    bench.bar("TTFT p99 added by a front, 64 streams", "hop.c64.front-1.ttft_p99_added", "<=", 5.0)
    bench.bar("a front's CPU per token", "crowd.front-1.cpu_per_token", "<=", 50.0)
    bench.bar("the same over HAProxy's", "crowd.over_haproxy", "<=", 2.0)
    bench.bar("two nodes of a paced engine over one", "nodes.speedup", ">=", 1.95)
    bench.bar("streams of a token a second over two fronts", "slow.streams", ">=", 10_000.0)
    bench.bar("the same: lost", "slow.lost", "<=", 0.0)
    bench.bar("a front's memory per slow stream", "slow.memory_per_stream", "<=", 60.0)
    bench.bar("a choice among 1,000 nodes", "choose.us", "<=", 20.0)
    bench.bar("1,000 reports a second: share of a core", "reports.core", "<=", 5.0)
    bench.bar("memory of 1,000 nodes' reports", "reports.memory", "<=", 200.0)
    bench.bar("a changed alias on all 16 fronts, p99", "alias.p99", "<=", 50.0)
    bench.bar("an adapter from a peer over wire and staging", "copy.over_wire_and_staging", "<=", 1.2)
    bench.bar("simulation: TTFT p99 over one ideal queue's", "simulated.ttft_ratio", "<=", 1.5)
    bench.bar("simulation: adapters found in a place", "simulated.adapter_hits", ">=", 95.0)
    bench.bar("simulation: the fullest node over the mean", "simulated.load_ratio", "<=", 1.25)
    bench.bar("simulation: moves per node and hour", "simulated.moves_node_hour", "<=", 2.0)
