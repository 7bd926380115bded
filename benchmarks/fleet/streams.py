"""The gain of a second node, and the cost of many slow streams over two fronts and two nodes."""

import asyncio
import random
import resource
import time
from collections.abc import Sequence

from benchmarks.fleet.crowds import Crowd
from benchmarks.fleet.servers import AT_ONCE, CROWDS, PACED, Front, ScriptedNode, wait_until
from benchmarks.harness import Bench
from benchmarks.load.client import Reply, connect
from benchmarks.load.clients import TIMEOUT, Cell
from benchmarks.load.stats import percentile
from benchmarks.peers import processes
from benchmarks.peers.servers import Server
from benchmarks.streams import PER_MODEL, paced_request

TOKENS, PACE_MS, CLIENTS = 20, 40, 6 * AT_ONCE
"""Mean tokens of an answer, milliseconds per token, and clients in a closed loop."""
SLOW_MS = 1000
REPORTED_SECONDS = 1.5
"""Time for a node's next report, as it reports at least once a second."""
SPARE_FILES = 1000


async def two_nodes(bench: Bench, front: Front, first: Server, second: ScriptedNode) -> None:
    """Measure tokens a second through a front, with one node and with two, in turn."""
    s = bench.settings
    rates: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(s.pick(6, 4, 2)):
        count = (1, 2, 2, 1)[turn % 4]
        set_draining(front, second, count == 1)
        await asyncio.sleep(REPORTED_SECONDS)
        await bench.rest([front, first, second], front)
        rates[count].append(await _rate(bench, front, s.pick(12.0, 5.0, 2.0)))
    set_draining(front, second, False)
    for count, values in rates.items():
        bench.figure(f"nodes.{count}.tokens_per_second", values, "tokens/s")
    pairs = zip(rates[1], rates[2], strict=True)
    bench.figure("nodes.speedup", [two / single for single, two in pairs], "x")


def set_draining(front: Front, node: ScriptedNode, is_draining: bool) -> None:
    """Drain a node, or let it receive requests again."""
    front.http.post(f"/v1/fleet/nodes/{node.name}/{'drain' if is_draining else 'undrain'}").raise_for_status()
    state = "draining" if is_draining else "up"
    wait_until(  # the node learns it up to two seconds later, and fronts go by its reports
        lambda: all(server.states().get(node.name) == state for server in (front, node)),
        f"{node.name} is not {state}",
        TIMEOUT,
    )


async def _rate(bench: Bench, front: Front, seconds: float) -> float:
    """Return tokens a second while all clients send requests, after a first second that is not counted."""
    chance = random.Random(bench.settings.seed)
    begun = time.perf_counter() + 1.0
    end = begun + seconds
    replies: list[Reply] = []

    async def client() -> None:
        connection = await connect(front.port)
        while time.perf_counter() < end and connection.open:
            tokens = max(1, round(TOKENS * chance.uniform(0.5, 1.5)))
            replies.append(await connection.ask(paced_request(PACED, tokens, PACE_MS), TIMEOUT))
        connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    cell = Cell(replies, seconds)
    bench.count("two nodes", cell)
    return sum(begun <= at < end for reply in cell.good for at in reply.arrivals) / seconds


async def slow(bench: Bench, fronts: Sequence[Front], nodes: Sequence[Server]) -> None:
    """Measure streams of a token a second, as many as open files and models allow, up to 10,000."""
    s = bench.settings
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = min(hard - SPARE_FILES, len(nodes) * len(CROWDS) * PER_MODEL)
    count = min(most, s.pick(10_000, 2000, 40))
    async with Crowd(fronts, CROWDS, 10 * len(fronts), 50):
        pass  # opens the fronts' connections to nodes and imports modules
    before = [processes.memory(front.pid) for front in fronts]
    pids = [server.pid for server in (*fronts, *nodes)]
    async with Crowd(fronts, CROWDS, count, SLOW_MS) as crowd:
        cpu, events, began = [processes.cpu_seconds(pid) for pid in pids], crowd.events, crowd.now
        await asyncio.sleep(s.pick(15.0, 6.0, 1.0))
        cpu = [processes.cpu_seconds(pid) - value for pid, value in zip(pids, cpu, strict=True)]
        events, seconds, running = crowd.events - events, crowd.now - began, crowd.open
        after = [processes.memory(front.pid) for front in fronts]
    crowd.count(bench, f"{crowd.opened} slow streams")
    bench.note(
        f"{crowd.opened} of {count} slow streams were opened within {crowd.opening_seconds:.0f} s; {running} ran while "
        f"they were measured, with {events / seconds:.0f} tokens a second"
    )
    held = [(b.pss or b.rss) - (a.pss or a.rss) for a, b in zip(before, after, strict=True)]
    bench.figure("slow.streams", [crowd.opened], "streams")
    bench.figure("slow.lost", [crowd.lost], "streams")
    bench.figure("slow.memory_per_stream", [sum(held) / crowd.opened / 1024], "KiB")
    gaps = [gap for reply in crowd.replies for gap in reply.gaps]
    if events and gaps:
        bench.figure("slow.front_cpu_per_token", [sum(cpu[: len(fronts)]) / events * 1e6], "µs")
        bench.figure("slow.node_cpu_per_token", [sum(cpu[len(fronts) :]) / events * 1e6], "µs")
        bench.figure("slow.token_late_p99", [percentile(gaps, 99) * 1e3 - SLOW_MS], "ms")
