"""Batches: how fast they are accepted and processed, and what they cost everybody else.

On the scripted engine (`benchmarks.batches.intake`): uploads with their check, compared with `json.loads` of each line;
creation of 50,000 lines; how much longer other requests wait meanwhile; the gateway's CPU time for a line, compared
with the same request over HTTP; its memory.

On the starter chat model:
- tokens a second of a batch, compared with 64 HTTP clients that send the same requests;
- twenty adapters in random order: with 4 places compared with the sorted file, with 24 places compared with stock
  `vllm serve` and the file in its order;
- first tokens of people's requests in bursts of 8, with and without a batch, in turn, and the share of idle places
  that lines use;
- how soon lines continue after a kill -9 of the server, once a model is ready;
- forecasts at creation and at a tenth of the lines over the actual time, of all batches here.

Physical limit: the engine's own batch is the same for both sides, so a batch can at most be as fast as clients that
keep it full. When people send requests, running lines yield to them and leave the engine after its step.
"""

import asyncio
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.adapters.pair import register
from benchmarks.batches import intake
from benchmarks.batches.files import (
    BatchRun,
    Body,
    cancel,
    chat_bodies,
    completed,
    create,
    forecast_ratios,
    jsonl,
    requests_of,
    run_batch,
    until,
    upload,
    view_of,
)  # fmt: skip
from benchmarks.harness import Bench
from benchmarks.load.client import Reply, connect
from benchmarks.load.clients import TIMEOUT, Cell, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.models import Chat, chat
from benchmarks.peers.servers import Roundhouse, Server, VllmServe, start_all
from benchmarks.report.generated import write_adapters

CLIENTS, ADAPTERS, BURST = 64, 20, 8
FEW, MANY = 4, 24
TOKENS = (16, 64)


async def run(bench: Bench) -> None:
    await intake.run(bench)
    s = bench.settings
    models = {places: chat(s, s.work / "batches" / str(places), device=places, host=MANY) for places in (FEW, MANY)}
    adapters = write_adapters(s.work / "batches" / "adapters", models[FEW].path, ADAPTERS, 8)
    with ExitStack() as stack:
        few = stack.enter_context(_few_server(bench, models[FEW]))
        for file in adapters:
            register(few, file.name, file)
        await _sorted(bench, few, [file.name for file in adapters])
        ratios = [forecast_ratios(few)]
        await _beside_people(bench, few, models[FEW])
        await _resume(bench, stack, few, models[FEW])
    with ExitStack() as stack:
        ratios.append(await _stock(bench, stack, models[MANY], adapters))
    _forecasts(bench, ratios)
    _bars(bench)


def _few_server(bench: Bench, model: Chat) -> Roundhouse:
    return Roundhouse(model.recipe.id, bench.settings.work / "batches" / "few", [model.file], "--slots", "1")


def _bodies(bench: Bench, models: list[str], seed: int, part: float = 1.0) -> list[Body]:
    count = int(bench.settings.pick(4000, 2000, 60) * part)
    return chat_bodies(random.Random(bench.settings.seed + seed), models, count, TOKENS)


async def _sorted(bench: Bench, server: Server, names: list[str]) -> None:
    """Measure the base by lines and by HTTP clients, and twenty adapters in random order and sorted."""
    runs: list[BatchRun] = []
    speedup, order, rates = [], [], []
    for round_ in range(bench.settings.rounds):
        bodies = _bodies(bench, [server.model], round_)
        cell = await closed_loop(server, requests_of(bodies), CLIENTS)
        bench.count("base by HTTP", cell)
        tokens = sum(body["max_tokens"] for body in bodies)
        batch = await run_batch(server, jsonl(bodies))
        runs.append(batch)
        rates.append(batch.tokens / batch.working)
        speedup.append(batch.tokens / batch.working / (tokens / cell.wall))
        mixed = _bodies(bench, names, 100 + round_)
        in_order = await run_batch(server, jsonl(sorted(mixed, key=lambda body: str(body["model"]))))
        random.Random(round_).shuffle(mixed)
        shuffled = await run_batch(server, jsonl(mixed))
        runs += [in_order, shuffled]
        order.append(shuffled.working / in_order.working)
    bench.figure("alone.tokens_per_second", rates, "tokens/s")
    bench.figure("alone.over_http", speedup, "x")
    bench.figure(f"adapters.{FEW}_places.random_over_sorted", order, "x")
    _count(bench, runs)


async def _stock(bench: Bench, stack: ExitStack, model: Chat, adapters: list[Path]) -> dict[str, list[float]]:
    """Compare a batch over twenty adapters in 24 places with stock vLLM, which gets the file in its order.

    Returns `forecast_ratios`.
    """
    folder = bench.settings.work / "batches" / "many"
    ours = Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1")
    stock = VllmServe(model.recipe, model.path, folder, variables={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})
    servers: list[Server] = [ours, stock]
    start_all(stack, servers)
    for server in servers:
        for file in adapters:
            register(server, file.name, file)
    runs: list[BatchRun] = []
    ratios, rates = [], []
    names = [file.name for file in adapters]
    for round_ in range(bench.settings.rounds):
        bodies = _bodies(bench, names, 200 + round_, part=0.4)
        random.Random(round_).shuffle(bodies)
        tokens = sum(body["max_tokens"] for body in bodies)
        await bench.rest(servers, ours)
        batch = await run_batch(ours, jsonl(bodies))
        await bench.rest(servers, stock)
        cell = await closed_loop(stock, requests_of(bodies), CLIENTS)
        bench.count("stock vLLM", cell)
        runs.append(batch)
        rates.append(tokens / cell.wall)
        ratios.append(batch.tokens / batch.working / rates[-1])
    bench.figure("stock.tokens_per_second", rates, "tokens/s")
    bench.figure(f"adapters.{MANY}_places.over_stock", ratios, "x")
    _count(bench, runs)
    return forecast_ratios(ours)


async def _beside_people(bench: Bench, server: Server, model: Chat) -> None:
    """Measure bursts of people's requests, alone and during a batch in turn."""
    s = bench.settings
    seconds = s.pick(60.0, 25.0, 3.0)
    ratios, added, alone_ms, beside_ms, steps, filled, lost = [], [], [], [], [], [], []
    for round_ in range(s.rounds):
        alone, _ = await _people(server, model, seconds, round_)
        bodies = _bodies(bench, [server.model], 300 + round_, part=12.0)  # more than it can finish in that time
        batch = create(server, await asyncio.to_thread(upload, server, jsonl(bodies)))
        await until(server, batch, lambda view: completed(view) > 0)
        before = await _line_seconds(server)
        beside, shares = await _people(server, model, seconds, round_)
        ran = {outcome: value - before[outcome] for outcome, value in (await _line_seconds(server)).items()}
        lost.append(100 * ran["lost"] / max(1e-9, sum(ran.values())))
        assert (await view_of(server, batch))["status"] == "in_progress", "the batch ended too early"
        await cancel(server, batch)
        cells = Cell(alone), Cell(beside)
        for name, cell in zip(("people alone", "people beside a batch"), cells, strict=True):
            bench.count(name, cell)
        steps.append(cells[1].gap_ms(50))  # a request that arrives waits for the running step
        alone_ms.append(cells[0].ttft_ms(99))
        beside_ms.append(cells[1].ttft_ms(99))
        ratios.append(beside_ms[-1] / (1.2 * alone_ms[-1] + steps[-1]))
        added.append(beside_ms[-1] / alone_ms[-1])
        filled.append(100 * sum(shares) / len(shares) if shares else 0.0)
    bench.figure("people.alone.ttft_p99", alone_ms, "ms")
    bench.figure("people.beside.ttft_p99", beside_ms, "ms")
    bench.figure("people.beside.step", steps, "ms")
    bench.figure("people.ttft_p99_ratio", added, "x")
    bench.figure("people.over_aim", ratios, "x")
    bench.figure("people.idle_places_filled", filled, "%")
    bench.figure("people.lines_lost", lost, "%")


async def _line_seconds(server: Server) -> dict[str, float]:
    """Return the seconds that lines have run, by outcome."""
    text, seconds = (await asyncio.to_thread(server.http.get, "/metrics")).text, {"used": 0.0, "lost": 0.0}
    for line in text.splitlines():
        if line.startswith("roundhouse_batch_line_seconds_total{"):
            series, _, value = line.rpartition(" ")
            seconds["lost" if 'outcome="lost"' in series else "used"] += float(value)
    return seconds


async def _people(server: Server, model: Chat, seconds: float, seed: int) -> tuple[list[Reply], list[float]]:
    """Send bursts with pauses between them.

    Returns the replies, and samples of the share of idle places that lines used.
    """
    workload, chance = Workload(seed + 1000), random.Random(seed)
    replies: list[Reply] = []
    shares: list[float] = []
    running = 0

    async def one() -> None:
        nonlocal running
        connection = await connect(server.port)
        running += 1
        try:
            replies.append(await connection.ask(workload.chat(server.model, tokens=24), TIMEOUT))
        finally:
            running -= 1
            connection.close()

    async def watch() -> None:
        capacity = model.recipe.batching.max_requests  # without the spare places, which only people may use
        while True:
            text = (await asyncio.to_thread(server.http.get, "/metrics")).text
            lines = [line for line in text.splitlines() if line.startswith("roundhouse_running_requests{")]
            used = sum(float(line.rpartition(" ")[2]) for line in lines) - running
            if capacity > running:
                shares.append(min(1.0, max(0.0, used) / (capacity - running)))
            await asyncio.sleep(0.25)

    watching = asyncio.create_task(watch())
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        await asyncio.gather(*(one() for _ in range(BURST)))
        await asyncio.sleep(chance.choice((0.2, 0.5, 3.0)))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return replies, shares


async def _resume(bench: Bench, stack: ExitStack, server: Roundhouse, model: Chat) -> None:
    """Kill the gateway with SIGKILL; measure from when the model is ready again until the next line ends."""
    seconds, loads = [], []
    for round_ in range(bench.settings.rounds):
        batch = create(server, upload(server, jsonl(_bodies(bench, [server.model], 400 + round_, part=1.2))))
        before = completed(await until(server, batch, lambda view: completed(view) >= 5, 0.02))
        os.kill(server.http.get("/v1/status").json()["pid"], signal.SIGKILL)
        server.stop()
        began = time.perf_counter()
        server = _few_server(bench, model)
        stack.enter_context(server)
        ready = time.perf_counter()  # entering the server has loaded the model
        await until(server, batch, lambda view, before=before: completed(view) > before, 0.02)  # type: ignore[misc]
        seconds.append(time.perf_counter() - ready)
        loads.append(ready - began)
        await cancel(server, batch)
    bench.figure("resume.seconds_after_ready", seconds, "s")
    bench.figure("resume.server_and_model", loads, "s")


def _forecasts(bench: Bench, servers: list[dict[str, list[float]]]) -> None:
    """Record forecasts over actual times, and the percentage of batches with a forecast near enough."""
    for label, near in (("creation", 2.0), ("tenth", 1.2)):
        ratios = [ratio for of_server in servers for ratio in of_server[label]]
        bench.series[f"forecast over truth, {label}"] = [round(ratio, 3) for ratio in ratios]
        bench.figure(f"forecast.{label}.over_truth", ratios, "x")
        good = sum(1 / near <= ratio <= near for ratio in ratios)
        bench.figure(f"forecast.{label}.near", [100 * good / len(ratios)] if ratios else [], "%")


def _count(bench: Bench, runs: list[BatchRun]) -> None:
    bench.counts["lines"] += sum(run.completed + run.failed for run in runs)
    if failed := sum(run.failed for run in runs):
        bench.failures["lines"] += failed


def _bars(bench: Bench) -> None:
    bench.bar("upload and check of 0.5 KB lines", "upload.500.mb_per_second", ">=", 40.0)
    bench.bar("upload and check of 4 KB lines", "upload.4000.mb_per_second", ">=", 100.0)
    bench.bar("the checker's memory", "upload.4000.checker", "<=", 64.0)
    bench.bar("other requests during an upload, p50 added", "upload.500.others_p50_added", "<=", 1.0)
    bench.bar("creation of 50,000 lines", "creation.seconds", "<=", 3.0)
    bench.bar("other requests meanwhile, longest added", "creation.others_longest_added", "<=", 50.0)
    bench.bar("gateway's CPU for a line, added over HTTP", "cost.added", "<=", 1.0)
    bench.bar("gateway's memory, 50,000 lines over 1,000", "memory.added", "<=", 5.0)
    bench.bar("tokens/s alone over 64 HTTP clients", "alone.over_http", ">=", 0.95)
    bench.bar("20 adapters in 4 places, random over sorted", f"adapters.{FEW}_places.random_over_sorted", "<=", 1.1)
    bench.bar("20 adapters in 24 places over stock vLLM", f"adapters.{MANY}_places.over_stock", ">=", 1.5)
    bench.bar("people's TTFT p99 over 1.2 x alone and a step", "people.over_aim", "<=", 1.0)
    bench.bar("idle places filled with lines", "people.idle_places_filled", ">=", 80.0)
    bench.bar("work of lines lost to people", "people.lines_lost", "<=", 5.0)
    bench.bar("lines continue after a kill, once ready", "resume.seconds_after_ready", "<=", 2.0)
    bench.bar("forecasts at a tenth within 20 %", "forecast.tenth.near", ">=", 90.0)
    bench.bar("forecasts at creation within a factor of 2", "forecast.creation.near", ">=", 90.0)
