"""Mixed: how bursts of embeddings, rerank and speech on the same server slow chat streams.

Measures chat TTFT and token gaps with four streams, alone and during a burst: sixteen clients of embeddings, four of
rerank and two of speech (those whose models are installed), all in closed loops.

Physical limit: the cores. Engines in separate processes cannot hold one another's locks, but on a CPU they share the
cores: with two cores and three busy engines a chat step gets no more than its fair share of the time. Anything beyond
that, such as a stream that waits for an embedding batch to end, would be a fault.
"""

import asyncio
from contextlib import ExitStack
from functools import partial

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, ask_until, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.models import chat
from benchmarks.peers.bare import starter
from benchmarks.peers.servers import Roundhouse, Server
from benchmarks.speech import samples, upload

STREAMS, TOKENS = 4, 128
CLIENTS = {"embed": 16, "rerank": 4, "speech": 2}


async def run(bench: Bench) -> None:
    s = bench.settings
    model = chat(s, s.work / "mixed", device=4, host=16)
    recipes = {kind: result[0] for kind in CLIENTS if (result := starter(kind))}
    for missing in set(CLIENTS) - set(recipes):
        bench.note(f"{missing}: not in the burst, its model is not in the starter pack")
    names = [model.recipe.id, *(f"starter-{kind}" for kind in recipes)]
    with ExitStack() as stack:
        server = stack.enter_context(
            Roundhouse(model.recipe.id, s.work / "mixed", [model.file, *recipes.values()], load=names)
        )
        workload = Workload(s.seed)
        quiet: list[Cell] = []
        loud: list[Cell] = []
        await closed_loop(server, [workload.chat(server.model) for _ in range(STREAMS)], STREAMS)
        for _ in range(s.rounds):
            quiet.append(await _streams(bench, server, workload, "alone"))
            loud.append(await _beside_burst(bench, server, workload, list(recipes)))
    for kind, cells in (("alone", quiet), ("burst", loud)):
        good = bench.chat_figures(kind, cells)
        bench.figure(f"{kind}.gap_longest", [c.gap_ms(100) for c in good], "ms")


async def _streams(bench: Bench, server: Server, workload: Workload, kind: str) -> Cell:
    number = STREAMS * bench.settings.pick(6, 3, 1)
    cell = await closed_loop(server, [workload.chat(server.model, tokens=TOKENS) for _ in range(number)], STREAMS)
    bench.count(f"chat {kind}", cell)
    return cell


async def _beside_burst(bench: Bench, server: Server, workload: Workload, kinds: list[str]) -> Cell:
    over = asyncio.Event()
    asking = [
        (kind, asyncio.create_task(ask_until(over, server, partial(_request, workload, kind))))
        for kind in kinds
        for _ in range(CLIENTS[kind])
    ]
    await asyncio.sleep(0.3)
    try:
        return await _streams(bench, server, workload, "beside the burst")
    finally:
        over.set()
        for kind, task in asking:
            bench.count(f"burst {kind}", Cell(await task))


def _request(workload: Workload, kind: str) -> bytes:
    if kind == "embed":
        return workload.embed("starter-embed", 16)
    if kind == "rerank":
        return workload.rerank("starter-rerank", 16, documents=10)
    return upload(samples()[0].read_bytes(), "starter-speech")
