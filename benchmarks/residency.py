"""Residency: how long an absent model takes to answer, compared with the naive way, and which model is resident when.

- switch: time from a request to the first answer of a model that is not resident, on a running server whose slots have
  already imported the engines. Compared with a new process of `vllm serve`, and with a new process that loads the
  library and the weights behind a handler (`benchmarks.peers.bare_handler`), which is what people without a residency
  manager do.
- trace: requests for the starter models by Zipf's law under a budget that fits all but one of them: which model was
  resident when (for a plot), the number of loads, and how long requests waited.

On a CPU there is one tier below resident: disk. Sleep to host memory needs CUDA and is not measured here.

Physical limit: the weights come from the page cache in milliseconds; the rest is process start, imports (4 to 8 s of
Python for vLLM, 3 s for sentence-transformers) and the engine's own set-up. Pre-warmed slots have done the imports.
"""

import asyncio
import random
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Bench
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell, one
from benchmarks.load.stats import percentile
from benchmarks.load.workload import Workload
from benchmarks.models import Chat, chat
from benchmarks.peers.bare import Bare, starter
from benchmarks.peers.servers import Roundhouse, Server, VllmServe
from benchmarks.speech import samples, upload
from registry.recipes.loading import load_recipes

AIMS = {"chat": 8.0, "embed": 2.0, "speech": 1.0}
"""Seconds from nothing to the first answer."""
SETTLED_SECONDS = 2.0
"""Pause before a switch, in which the processes of the last one end."""


async def run(bench: Bench) -> None:
    s = bench.settings
    model = chat(s, s.work / "residency", device=4, host=16)
    starters = {kind: result for kind in ("embed", "rerank", "speech") if (result := starter(kind))}
    for missing in {"embed", "rerank", "speech"} - set(starters):
        bench.note(f"{missing}: not measured, its model is not in the starter pack")
    kinds = ["chat", *starters]
    names = {"chat": model.recipe.id} | {kind: f"starter-{kind}" for kind in starters}
    engines = {kind: load_recipes(file)[0].engine.name for kind, (file, _) in starters.items()}
    engines["chat"] = model.recipe.engine.name
    workload = Workload(s.seed)
    recipes = [model.file, *(file for file, _ in starters.values())]
    with Roundhouse(model.recipe.id, s.work / "residency", recipes, load=list(names.values())) as server:
        sizes = {kind: int(server.http.get(f"/v1/models/{name}").json()["bytes"]) for kind, name in names.items()}
        for kind in kinds:
            await _switches(bench, server, workload, kind, names[kind], engines[kind])
    for kind in kinds:
        await _naive(bench, model, starters, workload, kind)
    if len(kinds) > 1:
        budget = sum(sizes.values()) - min(sizes.values()) // 2
        with Roundhouse(
            model.recipe.id, s.work / "trace", recipes, "--device-memory", str(budget), load=[model.recipe.id]
        ) as server:
            await _trace(bench, server, workload, names)
    for kind, aim in AIMS.items():
        bench.bar(f"{kind}: from nothing to the first answer", f"switch.{kind}.roundhouse.seconds", "<=", aim)


def _request(workload: Workload, kind: str, model: str) -> bytes:
    if kind == "chat":
        return workload.chat(model, tokens=1)
    if kind == "embed":
        return workload.embed(model, 8)
    if kind == "rerank":
        return workload.rerank(model, 8, documents=1)
    return upload(samples()[0].read_bytes(), model)


async def _switches(
    bench: Bench, server: Roundhouse, workload: Workload, kind: str, model: str, engine: str
) -> None:  # fmt: skip
    replies: list[Reply] = []
    for _ in range(bench.settings.rounds):
        server.http.post(f"/v1/models/{model}/unload").raise_for_status()
        server.wait_warm(engine)
        await asyncio.sleep(bench.settings.pick(SETTLED_SECONDS, SETTLED_SECONDS, 0.1))
        replies.append(await one(server, _request(workload, kind, model)))
    cell = Cell(replies)
    bench.count(f"switch {kind}", cell)
    bench.figure(f"switch.{kind}.roundhouse.seconds", [reply.total for reply in cell.good], "s")


async def _naive(
    bench: Bench, model: Chat, starters: dict[str, tuple[Path, Path]], workload: Workload, kind: str
) -> None:
    seconds = []
    for _ in range(1 if kind == "chat" else bench.settings.pick(2, 1, 1)):  # a start of vLLM takes 40 s
        folder = bench.settings.work / "residency-naive"
        server: Server = (
            VllmServe(model.recipe, model.path, folder) if kind == "chat" else Bare({kind: starters[kind][1]}, folder)
        )
        began = time.perf_counter()
        with ExitStack() as stack:
            stack.enter_context(server)
            reply = await one(server, _request(workload, kind, server.model))
            seconds.append(time.perf_counter() - began)
            bench.count(f"naive {kind}", Cell([reply]))
    name = "vllm serve" if kind == "chat" else "bare library"
    bench.figure(f"switch.{kind}.{name}.seconds", seconds, "s")


async def _trace(bench: Bench, server: Server, workload: Workload, names: dict[str, str]) -> None:
    """Run one client per model, with random pauses so that the n-th model gets 1/n as many requests as the first."""
    seconds = bench.settings.pick(30.0, 30.0, 5.0)
    began = time.perf_counter()
    replies: list[Reply] = []
    resident: list[tuple[float, list[str]]] = []

    async def client(rank: int, kind: str) -> None:
        rng = random.Random(rank)
        while time.perf_counter() - began < seconds:
            await asyncio.sleep(rng.expovariate(2.0 / rank))
            replies.append(await one(server, _request(workload, kind, names[kind])))

    async def watch() -> None:
        while time.perf_counter() - began < seconds:
            status = await asyncio.to_thread(lambda: server.http.get("/v1/status").json())
            ready = [m["id"] for m in status["models"] if m["state"] == "ready"]
            resident.append((round(time.perf_counter() - began, 2), ready))
            await asyncio.sleep(0.2)

    await asyncio.gather(watch(), *(client(i, kind) for i, kind in enumerate(names, 1)))
    cell = Cell(replies)
    bench.count("trace", cell)
    bench.series["trace"] = resident
    models = server.http.get("/v1/status").json()["models"]
    bench.figure("trace.loads", [sum(m["loads"] for m in models)], "loads")
    if cell.good:
        waits = [reply.total for reply in cell.good]
        for q in (50, 99, 100):
            bench.figure(f"trace.wait_p{q}", [percentile(waits, q)], "s")
