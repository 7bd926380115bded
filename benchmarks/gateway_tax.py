"""Gateway tax: chat streaming compared with `vllm serve`, with the same wheel, model and flags, adapters on.

Measures at 1, 4, 16 and 64 clients in a closed loop: time to first token, gaps between tokens, output tokens a second,
and CPU seconds per 1,000 tokens of the whole process tree. Each server gets the same requests to the base model, of 64
tokens each (24 tokens, but more requests, at one client). All servers are started anew for each round.

Physical limit: both servers use the same engine, so nothing can beat the engine's own step time unless the engine runs
differently. Roundhouse adds one parse of the request, one hop over a Unix socket each way and one write per read of the
engine; on loopback that is some 0.3 ms to the first token and some 10 µs of CPU per token. Where Roundhouse is faster
than `vllm serve`, that is because its engine uses one compute thread for a small model and other LoRA kernels.
Therefore `vllm serve, patched` runs at 1 and 16 clients with the same threads and kernels (not with --quick): compared
with it, only the gateway differs. With BENCHMARKS_BEFORE=FOLDER an older checkout of Roundhouse takes turns, too.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.models import chat
from benchmarks.pairs import compare
from benchmarks.peers.servers import BEFORE, KEPT, PATCHED, Before, Roundhouse, Server, VllmServe, before

TOKENS, TOKENS_ALONE, WORDS = 64, 24, 6
WITH_PATCHED = (1, 16)
"""Numbers of clients at which the patched peer is also measured."""


async def run(bench: Bench) -> None:
    s = bench.settings
    model = chat(s, s.work / "gateway_tax", device=24, host=64)
    workload = Workload(s.seed)
    levels = s.pick((1, 4, 16, 64), (1, 16), (1, 4))
    cells: dict[int, dict[str, list[Cell]]] = {level: defaultdict(list) for level in levels}

    def servers(start: int) -> list[Server]:
        folder = s.work / "gateway_tax" / f"start-{start}"
        recipe, options = (model.recipe.id, folder, [model.file]), ("--slots", "1")
        peers = [VllmServe(model.recipe, model.path, folder)]
        if not s.quick and not s.smoke:
            peers.append(VllmServe(model.recipe, model.path, folder, patched=True))
        return [Roundhouse(*recipe, *options), *peers, *before(*recipe, *options)]

    async def measure(started: Sequence[Server], _: int) -> None:
        for level in levels:
            peers = [server for server in started if level in WITH_PATCHED or server.name != PATCHED]
            for name, [cell] in (await _round(bench, peers, workload, level)).items():
                cells[level][name].append(cell)

    bench.series["levels"] = list(levels)
    await bench.starts(servers, measure)
    for level in levels:
        _figures(bench, level, cells[level])
    bench.bar("tokens/s against vllm serve, worst level", "worst.tokens_ratio", ">=", 0.95)
    bench.bar("TTFT p50 added at 1 client", "c1.ttft_p50_added", "<=", 1.0)
    bench.bar("TTFT p99 added at 1 client", "c1.ttft_p99_added", "<=", 5.0)
    for level in levels if BEFORE in os.environ else ():
        bench.bar(f"tokens/s over those of before, {level} clients", f"c{level}.over_before.tokens_ratio", ">=", KEPT)


async def _round(
    bench: Bench, servers: Sequence[Server], workload: Workload, level: int
) -> Mapping[str, Sequence[Cell]]:
    s = bench.settings
    number = max(s.pick(32, 12, 2), level * s.pick(2, 2, 1))
    tokens = TOKENS if level > 1 else TOKENS_ALONE
    texts = [workload.text(WORDS) for _ in range(number)]

    async def turn(server: Server, _: int) -> Cell:
        # a warm-up in each round, because the server was idle during the others' turns
        await closed_loop(server, [workload.chat(server.model, tokens=8) for _ in range(max(4, level))], level)
        requests = [workload.chat(server.model, tokens=tokens, text=text) for text in texts]
        cell = await closed_loop(server, requests, level)
        bench.count(f"c{level} {server.name}", cell)
        return cell

    return await bench.turns(servers, turn, rounds=1)


def _figures(bench: Bench, level: int, rounds: Mapping[str, Sequence[Cell]]) -> None:
    for name, cells in rounds.items():
        key = f"c{level}.{name}"
        good = bench.chat_figures(key, cells)
        bench.figure(f"{key}.cpu_per_1000_tokens", [c.cpu / c.tokens * 1e3 for c in good], "s")
        bench.figure(f"{key}.client_cpu_per_1000_tokens", [c.client_cpu / c.tokens * 1e3 for c in good], "s")
    for name, peer in rounds.items():
        if name == "roundhouse":
            continue
        against = {"vllm serve": "", Before.name: ".over_before"}.get(name, ".against_patched")
        compare(bench, f"c{level}{against}", list(zip(rounds["roundhouse"], peer, strict=True)))
    ratio = bench.figures.get(f"c{level}.tokens_ratio")
    worst = bench.figures.get("worst.tokens_ratio")
    if ratio is not None and (worst is None or ratio.value < worst.value):
        bench.figures["worst.tokens_ratio"] = ratio
