"""Adapters: what a swap costs the request that needs it, other streams, and the server as a whole.

Compares Roundhouse with stock `vllm serve` and its `/v1/load_lora_adapter`, in the same run, with the same model,
places and adapter files:

- tiers: time to first token added over the base, for an adapter in a device place, in host memory, and on disk (in the
  page cache). The order of requests, given the sizes of the LRU caches, puts adapters into these tiers. With Roundhouse
  the tier is also checked before the first request; stock vLLM has no call for that.
- storm: gaps between the tokens of other streams during a continuous series of requests to adapters on disk. The same
  series to the base, which swaps nothing, separates the cost of the requests from the cost of the swaps.
- mixed: output tokens a second with twenty adapters in one batch, compared with the base alone, with servers that are
  started anew for each round.
- many: 1,000 registrations: how many a second, memory and the time of a step before and after.

With BENCHMARKS_BEFORE=FOLDER an older checkout takes turns, too; an `over_before` above 1 is better than there.

`added_p99` is the 99th percentile of (TTFT - the base's median TTFT in the same round); for `base` it shows how much of
that is noise of the machine. `p99_over_p99` is the 99th percentile minus the base's 99th percentile.

Physical limit: a resident adapter costs two thin matrix products per layer. A swap must copy the adapter's bytes once
(0.3 MB: 0.1 ms; 45 MB: about 10 ms at 5 GB/s), and read them once more from disk. On two cores, staging shares the
cores with the running step. Stock vLLM also computes LoRA on the CPU by gathering a matrix per token, so its resident
adapters are slow for more reasons than placement: that is part of what its users get.
"""

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.adapters import many as adapters_many
from benchmarks.adapters import storm as adapters_storm
from benchmarks.adapters.pair import pair, register
from benchmarks.adapters.prefills import prefills
from benchmarks.harness import Bench
from benchmarks.load.client import Connection, Reply, connect
from benchmarks.load.clients import TIMEOUT, Cell, one
from benchmarks.load.stats import percentile
from benchmarks.load.workload import Workload
from benchmarks.models import Chat, chat
from benchmarks.peers.servers import BEFORE, KEPT, Before, Roundhouse, Server, start_all
from benchmarks.report import environment
from benchmarks.report.generated import size, write_adapters

TIERS = ("device", "host", "disk")
AIMS = {"device": 2.0, "host": 10.0, "disk": 50.0}
"""Milliseconds that the first token's p99 may exceed the base's, by the adapter's tier."""


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Sizes of the tiers part: one adapter stays resident, `host` minus four fit into host memory but not all into the
    places, and the rest stay on disk."""

    device: int
    host: int
    files: int
    requests: tuple[int, int, int]
    """Requests per tier and round: full, quick, smoke."""

    def of(self, names: list[str]) -> dict[str, list[str]]:
        """Map each tier to the names of the adapters to request there."""
        return {"device": names[:1], "host": names[1 : self.host - 3], "disk": names[self.host - 3 :]}


SMALL = TierSizes(device=4, host=16, files=40, requests=(100, 27, 3))
WIDE = TierSizes(device=2, host=8, files=14, requests=(9, 9, 3))


async def run(bench: Bench) -> None:
    s = bench.settings
    model = chat(s, s.work / "adapters", device=SMALL.device, host=SMALL.host)
    files = write_adapters(s.work / "adapters" / "small", model.path, SMALL.files, 8)
    bench.note(f"generated adapters of {size(files[0]) / 1e6:.2f} MB, rank 8")
    await few_places(bench, model, files, "small", SMALL)
    many = s.pick(1000, 100, 24)
    await adapters_many.run(bench, chat(s, s.work / "adapters" / "many", device=24, host=max(64, many)), many)
    for tier, aim in AIMS.items():
        bench.bar(f"{tier}: TTFT p99 over the base's", f"small.roundhouse.{tier}.p99_over_p99", "<=", aim)
    bench.bar("storm: longest gap / undisturbed p99", "small.roundhouse.storm.longest_ratio", "<=", 1.2)
    bench.bar("mixed: tokens/s, 20 adapters / base", "mixed.roundhouse.ratio", ">=", 0.9)
    bench.bar("registrations a second", "many.roundhouse.per_second", ">=", 20.0)
    if BEFORE in os.environ:
        for tier in ("base", *TIERS):
            bench.bar(f"{tier}: TTFT p50 of before over today's", f"small.over_before.{tier}", ">=", KEPT)
        for kind in ("base", "adapters"):
            bench.bar(f"mixed: tokens/s of {kind} over those of before", f"mixed.over_before.{kind}", ">=", KEPT)


async def few_places(
    bench: Bench, model: Chat, files: list[Path], label: str, places: TierSizes, prompt: int = 0
) -> None:  # fmt: skip
    """Measure the tiers and the storm.

    Args:
        label: prefix of the figures' names.
        prompt: if not 0, measure the tiers again under a stream of base prompts of so many letters.
    """
    s = bench.settings
    folder = s.work / "adapters" / f"{label}-servers"
    with ExitStack() as stack:
        servers = pair(model, folder)
        start_all(stack, servers)
        bench.say("the servers are ready")
        bench.series[f"{label}: commands"] = {server.name: server.portable_command for server in servers}
        for server in servers:
            for file in files:
                register(server, file.name, file)
        groups = places.of([file.name for file in files])
        number = bench.settings.pick(*places.requests)
        await _tiers(bench, servers, groups, number, label, files[0].parent)
        if prompt:
            await _tiers(bench, servers, groups, number, f"{label}, prefills", files[0].parent, prompt)
        await adapters_storm.run(bench, servers, groups["disk"], label)


async def _tiers(
    bench: Bench, servers: list[Server], groups: dict[str, list[str]], number: int, label: str, files: Path,
    prompt: int = 0,
) -> None:  # fmt: skip
    workload = Workload(bench.settings.seed)
    misplaced = 0

    async def turn(server: Server, _: int) -> dict[str, list[float]]:
        async with prefills(bench, server, prompt):
            return await tiers(server)

    async def tiers(server: Server) -> dict[str, list[float]]:
        nonlocal misplaced
        connection = await connect(server.port)
        result: dict[str, list[float]] = {}
        try:
            # brings back what the kernel paged out during the other server's turn (`environment.pages_out`)
            await asyncio.to_thread(environment.read_through, server.folder, files)
            for group in groups.values():
                await _ask(bench, server, connection, workload, group[-4:], "warm")
            await _ask(bench, server, connection, workload, [server.model] * 5, "warm")
            result["base"] = await _ask(bench, server, connection, workload, [server.model] * number, "base")
            for tier, group in groups.items():
                if tier != "disk":  # these move to their tier now; the others are too many to be anywhere but on disk
                    await _ask(bench, server, connection, workload, group, "warm")
                requests = [group[i % len(group)] for i in range(number)]
                if isinstance(server, Roundhouse):
                    misplaced += sum(_tier(server, name) != tier for name in group[: number if tier == "disk" else 1])
                result[tier] = await _ask(bench, server, connection, workload, requests, tier)
        finally:
            connection.close()
        return result

    result = await bench.turns(servers, turn)
    if misplaced:
        bench.note(f"{label}: {misplaced} adapters were not in the tier to measure")
    for name, turns in result.items():
        for tier in ("base", *TIERS):
            both = [(percentile(t["base"], 50), t[tier]) for t in turns if t["base"] and t[tier]]
            for q in (50, 99):
                added = [(percentile(times, q) - base) * 1e3 for base, times in both]
                bench.figure(f"{label}.{name}.{tier}.added_p{q}", added, "ms")
            over = [(percentile(t[tier], 99) - percentile(t["base"], 99)) * 1e3 for t in turns if t["base"] and t[tier]]
            bench.figure(f"{label}.{name}.{tier}.p99_over_p99", over, "ms")
        if name == Before.name:
            for tier in ("base", *TIERS):
                rounds = zip(result["roundhouse"], turns, strict=True)
                ratios = [percentile(b[tier], 50) / percentile(a[tier], 50) for a, b in rounds if a[tier] and b[tier]]
                bench.figure(f"{label}.over_before.{tier}", ratios, "x")
        bench.figure(
            f"{label}.{name}.base.ttft_p50", [percentile(t["base"], 50) * 1e3 for t in turns if t["base"]], "ms"
        )


async def _ask(
    bench: Bench, server: Server, connection: Connection, workload: Workload, models: list[str], what: str
) -> list[float]:
    """Send one request after another; returns their seconds to first token. Failed ones are left out and counted."""
    replies: list[Reply] = []
    for model in models:
        if not connection.open:
            replies.append(await one(server, workload.chat(model, tokens=1)))
        else:
            replies.append(await connection.ask(workload.chat(model, tokens=1), TIMEOUT))
    bench.count(f"tiers {server.name} {what}", Cell(replies))
    return [reply.ttft for reply in replies if reply.error is None]


def _tier(server: Server, name: str) -> str:
    return str(server.http.get(f"/v1/adapters/{name}").json()["tier"])
