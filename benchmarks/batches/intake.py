"""Part of `benchmarks.batches.run`: files, creation, memory and the cost of a line, on the scripted engine."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import psutil

from benchmarks.batches.files import (
    cancel,
    completed,
    create,
    is_stored,
    jsonl,
    paced_body,
    requests_of,
    run_batch,
    until,
    upload,
)  # fmt: skip
from benchmarks.harness import Bench
from benchmarks.load.client import Reply
from benchmarks.load.clients import ask_until, closed_loop
from benchmarks.load.stats import percentile
from benchmarks.peers.servers import Server
from benchmarks.report.generated import write_model
from benchmarks.streams import Scripted, scripted_recipe

T = TypeVar("T")
MODEL = "scripted"
AT_ONCE, CLIENTS, MIB = 64, 64, 1 << 20
CHECKER = "batches.check_process"


async def run(bench: Bench) -> None:
    s = bench.settings
    folder = s.work / "batches-scripted"
    weights = write_model(s.work / "tiny-model", hidden=128, ffn=256, layers=2)
    recipe = scripted_recipe(folder, MODEL, weights, batching={"max_requests": AT_ONCE})
    with Scripted(MODEL, folder, [recipe], "--slots", "1", "--no-prewarm", "--device", "cpu") as server:
        await run_batch(server, jsonl([paced_body(MODEL, 1, 1)] * 100))  # creates tables and processes
        for size, filling in ((500, 300), (4000, 3800)):
            await _uploads(bench, server, size, filling)
        await _creations(bench, server)
        await _cost(bench, server)


async def _beside(server: Server, work: Callable[[], Awaitable[T]]) -> tuple[T, list[Reply]]:
    """Run the work beside one client that sends requests; returns the work's result and the client's replies."""
    over = asyncio.Event()
    request = requests_of([paced_body(MODEL, 1, 1)])[0]
    client = asyncio.create_task(ask_until(over, server, lambda: request))
    try:
        result = await work()
    finally:
        over.set()
    return result, await client


async def _alone(server: Server) -> list[Reply]:
    _, replies = await _beside(server, lambda: asyncio.sleep(2.0))
    return replies


def _ms(replies: list[Reply], q: float) -> float:
    return percentile([reply.total for reply in replies if reply.error is None], q) * 1e3


async def _uploads(bench: Bench, server: Server, size: int, filling: int) -> None:
    s = bench.settings
    lines = s.pick(50_000, 20_000, 200) if size < 1000 else s.pick(25_000, 10_000, 50)
    data = jsonl([paced_body(MODEL, 1, 1, filling)] * lines)
    rates, peers, added, checkers = [], [], [], []
    for _ in range(s.rounds):
        before, began = await _alone(server), time.perf_counter()
        await asyncio.to_thread(upload, server, data)
        rates.append(len(data) / 1e6 / (time.perf_counter() - began))
        watch = asyncio.create_task(_largest_checker(server.pid))
        _, during = await _beside(server, lambda: asyncio.to_thread(upload, server, data))
        watch.cancel()
        checkers.append((await watch) / MIB)
        added.append(_ms(during, 50) - _ms(before, 50))
        began = time.perf_counter()
        for line in data.splitlines():
            json.loads(line)
        peers.append(len(data) / 1e6 / (time.perf_counter() - began))
    bench.figure(f"upload.{size}.mb_per_second", rates, "MB/s")
    bench.figure(f"upload.{size}.json_loads", peers, "MB/s")
    bench.figure(f"upload.{size}.others_p50_added", added, "ms")
    bench.figure(f"upload.{size}.checker", checkers, "MiB")


async def _largest_checker(pid: int) -> int:
    """Return the most bytes that a checker process of this server used before this task was cancelled."""
    largest = 0
    try:
        while True:
            for child in await asyncio.to_thread(_children, pid):
                with suppress(psutil.Error):
                    if CHECKER in " ".join(child.cmdline()):
                        largest = max(largest, child.memory_info().rss)
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        pass
    return largest


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _gateway(server: Server) -> psutil.Process:
    return psutil.Process(server.http.get("/v1/status").json()["pid"])


async def _creations(bench: Bench, server: Server) -> None:
    """Create batches of 50,000 and of 1,000 lines, so slow that few lines run before the batch is cancelled."""
    s = bench.settings
    gateway, most = _gateway(server), s.pick(50_000, 50_000, 500)
    files = {count: upload(server, jsonl([paced_body(MODEL, 100, 1000)] * count)) for count in (1000, most)}
    seconds: list[float] = []
    memory: dict[int, list[float]] = {count: [] for count in files}
    worst, plain = [], []
    for _ in range(s.rounds):
        for count, file in files.items():
            before = await _alone(server)

            async def make(file: str = file) -> tuple[str, float]:
                began = time.perf_counter()
                batch = await asyncio.to_thread(create, server, file)
                await until(server, batch, is_stored, 0.02)
                return batch, time.perf_counter() - began

            (batch, took), during = await _beside(server, make)
            await asyncio.sleep(1.0)
            memory[count].append(gateway.memory_info().rss / MIB)
            await cancel(server, batch)
            if count == most:
                seconds.append(took)
                worst.append(_ms(during, 100))
                plain.append(_ms(before, 100))
    bench.figure("creation.seconds", seconds, "s")
    bench.figure("creation.others_longest", worst, "ms")
    bench.figure("creation.others_longest_before", plain, "ms")
    bench.figure("creation.others_longest_added", [a - b for a, b in zip(worst, plain, strict=True)], "ms")
    bench.figure("memory.added", [many - few for few, many in zip(memory[1000], memory[most], strict=True)], "MiB")


async def _cost(bench: Bench, server: Server) -> None:
    """Measure the gateway's CPU milliseconds for a line, and for the same request over HTTP."""
    s = bench.settings
    bodies = [paced_body(MODEL, 1, 1)] * s.pick(20_000, 5_000, 100)
    data, requests, gateway = jsonl(bodies), requests_of(bodies), _gateway(server)

    def cpu() -> float:
        times = gateway.cpu_times()
        return float(times.user + times.system)

    lines, https, rates = [], [], []
    for _ in range(s.rounds):
        file = await asyncio.to_thread(upload, server, data)
        batch, before, began = await asyncio.to_thread(create, server, file), cpu(), time.perf_counter()
        await until(server, batch, lambda view: completed(view) == len(bodies), 0.2)
        lines.append((cpu() - before) / len(bodies) * 1e3)
        working = time.perf_counter() - began
        before = cpu()
        cell = await closed_loop(server, requests, CLIENTS)
        bench.count("scripted by HTTP", cell)
        https.append((cpu() - before) / len(bodies) * 1e3)
        rates.append(len(bodies) / working / cell.requests_per_second)
    bench.figure("cost.line", lines, "ms")
    bench.figure("cost.http", https, "ms")
    bench.figure("cost.added", [line - http for line, http in zip(lines, https, strict=True)], "ms")
    bench.figure("cost.rate_over_http", rates, "x")
