"""Embeddings and rerank, compared with sentence-transformers behind a plain FastAPI handler and with infinity-emb.

All three use the same weights in float32. infinity-emb runs in its own environment, which `make bench` creates.

Measures latency, requests a second and CPU seconds per 1,000 requests with short, long and mixed texts and 1, 16 and 64
clients in a closed loop (long texts: 1 and 16), with one text per embedding request and ten documents per rerank
request.

Physical limit: the encoder's own multiplications. Batching across requests helps if one step with many rows is cheaper
than many steps with one row: a lot for short texts, where a step is mostly overhead; not at all for long texts, which
fill the cores by themselves. At one client there is nothing to batch, so the gateway's hop is the difference.
"""

from contextlib import ExitStack

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.peers import infinity
from benchmarks.peers.bare import Bare, starter
from benchmarks.peers.servers import Roundhouse, Server, start_all

WORDS = {"short": (8,), "long": (150,), "mixed": (4, 8, 8, 16, 32, 150)}
"""Lengths in words, taken in turn."""
LENGTHS = tuple(WORDS)
DOCUMENTS = 10


async def run(bench: Bench) -> None:
    s = bench.settings
    kinds = {kind: result for kind in ("embed", "rerank") if (result := starter(kind))}
    for missing in {"embed", "rerank"} - set(kinds):
        bench.note(f"{missing}: not measured, the starter pack is missing")
    names = [f"starter-{kind}" for kind in kinds]
    folder = s.work / "embed_rerank"
    with ExitStack() as stack:
        servers: list[Server] = [
            Roundhouse(names[0], folder, [file for file, _ in kinds.values()], load=names),
            Bare({kind: path for kind, (_, path) in kinds.items()}, folder),
        ]
        if infinity.installed():
            servers.append(infinity.Infinity({f"starter-{kind}": path for kind, (_, path) in kinds.items()}, folder))
        else:
            bench.note("infinity-emb: not measured, scripts/install-clients infinity has not been run")
        start_all(stack, servers)
        workload = Workload(s.seed)
        for kind in kinds:
            for length in s.pick(LENGTHS, ("short", "mixed"), ("short",)):
                for level in s.pick((1, 16) if length == "long" else (1, 16, 64), (1, 16), (1, 4)):
                    await _cell(bench, servers, workload, kind, length, level)
    for kind in kinds:
        for length in LENGTHS:
            key = f"{kind}.{length}.c16"
            bench.bar(f"{kind}: requests/s against bare, {length}, 16 clients", f"{key}.ratio", ">=", 2.0)
            bench.bar(f"{kind}: requests/s against infinity, {length}, 16 clients", f"{key}.infinity.ratio", ">=", 1.3)
        bench.bar(f"{kind}: p50 added, short, 1 client", f"{kind}.short.c1.p50_added", "<=", 2.0)


def _request(workload: Workload, kind: str, words: int) -> bytes:
    model = f"starter-{kind}"
    return workload.embed(model, words) if kind == "embed" else workload.rerank(model, words, DOCUMENTS)


async def _cell(
    bench: Bench, servers: list[Server], workload: Workload, kind: str, length: str, level: int
) -> None:  # fmt: skip
    few = 16 if (kind, length) == ("rerank", "long") else 40  # each of the former takes the peers seconds
    number = max(bench.settings.pick(few, 24, 4), level * bench.settings.pick(2, 2, 1))
    lengths = WORDS[length]

    async def turn(server: Server, round_: int) -> Cell:
        requests = [_request(workload, kind, lengths[i % len(lengths)]) for i in range(number)]
        # in each round: a kernel may page out what was idle during the others' turns (`environment.pages_out`)
        await closed_loop(server, requests[: 2 if round_ else max(4, level)], level)
        cell = await closed_loop(server, requests, level)
        bench.count(f"{kind} {length} c{level} {server.name}", cell)
        return cell

    rounds = await bench.turns(servers, turn)
    for name, cells in rounds.items():
        key = f"{kind}.{length}.c{level}.{name}"
        good = [cell for cell in cells if cell.good]
        bench.figure(f"{key}.per_second", [c.requests_per_second for c in good], "1/s")
        for q in (50, 99):
            bench.figure(f"{key}.p{q}", [c.total_ms(q) for c in good], "ms")
        bench.figure(f"{key}.cpu_per_1000", [c.cpu / len(c.good) * 1e3 for c in good], "s")
    key = f"{kind}.{length}.c{level}"
    for peer, prefix in (("bare library", key), ("infinity-emb", f"{key}.infinity")):
        if peer not in rounds:
            continue
        pairs = [(a, b) for a, b in zip(rounds["roundhouse"], rounds[peer], strict=True) if a.good and b.good]
        bench.figure(f"{prefix}.ratio", [a.requests_per_second / b.requests_per_second for a, b in pairs], "x")
        bench.figure(f"{prefix}.p50_added", [a.total_ms(50) - b.total_ms(50) for a, b in pairs], "ms")
