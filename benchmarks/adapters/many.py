"""Part of `benchmarks.adapters.small`: twenty adapters in one batch, and a thousand registered ones."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.adapters.pair import pair, register, registration
from benchmarks.harness import Bench
from benchmarks.load.client import Reply, connect, request_bytes
from benchmarks.load.clients import TIMEOUT, Cell, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.models import Chat
from benchmarks.peers import processes
from benchmarks.peers.servers import Before, Roundhouse, Server
from benchmarks.report.generated import write_adapters

MIXED = 20
TOKENS = 64


async def run(bench: Bench, model: Chat, many: int, rank: int = 8) -> None:
    """Measure the first twenty of `many` adapters in one batch, then register the rest with the last servers."""
    s = bench.settings
    files = write_adapters(s.work / "adapters" / "many-files", model.path, many, rank)
    names = [file.name for file in files[:MIXED]]
    workload = Workload(s.seed + 2)
    cells: dict[str, list[tuple[Cell, Cell]]] = defaultdict(list)

    async def measure(servers: Sequence[Server], start: int) -> None:
        for server in servers:
            for file in files[:MIXED]:
                register(server, file.name, file)
        for name, [both] in (await _mixed(bench, servers, names, workload)).items():
            cells[name].append(both)
        if start == s.starts - 1:
            for server in servers if files[MIXED:] else ():
                await _register_all(bench, server, files[MIXED:])

    await bench.starts(lambda start: pair(model, s.work / "adapters" / f"many-servers-{start}"), measure)
    _mixed_figures(bench, cells)


async def _mixed(
    bench: Bench, servers: Sequence[Server], names: Sequence[str], workload: Workload
) -> Mapping[str, Sequence[tuple[Cell, Cell]]]:
    """Measure the base alone, then the adapters, one server after another."""
    number = MIXED * bench.settings.pick(4, 2, 1)

    async def turn(server: Server, round_: int) -> tuple[Cell, Cell]:
        # brings every adapter into its place, and back what the kernel paged out (`environment.pages_out`)
        await closed_loop(server, [workload.chat(name, tokens=2) for name in [*names, server.model]], MIXED)
        base = [workload.chat(server.model, tokens=TOKENS) for _ in range(number)]
        mixed = [workload.chat(names[i % MIXED], tokens=TOKENS) for i in range(number)]
        cells = await closed_loop(server, base, MIXED), await closed_loop(server, mixed, MIXED)
        for kind, cell in zip(("base", "adapters"), cells, strict=True):
            bench.count(f"mixed {server.name} {kind}", cell)
        return cells

    return await bench.turns(servers, turn, rounds=1)


def _mixed_figures(bench: Bench, turns: Mapping[str, Sequence[tuple[Cell, Cell]]]) -> None:
    for name, cells in turns.items():
        good = [(base, mixed) for base, mixed in cells if base.good and mixed.good]
        for kind, which in (("base", 0), ("adapters", 1)):
            key = f"mixed.{name}.{kind}"
            bench.figure(f"{key}.tokens_per_second", [pair[which].tokens_per_second for pair in good], "tokens/s")
            bench.figure(f"{key}.gap_p99", [pair[which].gap_ms(99) for pair in good], "ms")
            bench.figure(f"{key}.cpu_per_1000_tokens", [p[which].cpu / p[which].tokens * 1e3 for p in good], "s")
        bench.figure(f"mixed.{name}.ratio", [m.tokens_per_second / b.tokens_per_second for b, m in good], "x")
        if name == Before.name:
            for which, kind in enumerate(("base", "adapters")):
                rounds = [(a[which], b[which]) for a, b in zip(turns["roundhouse"], cells, strict=True)]
                ratios = [a.tokens_per_second / b.tokens_per_second for a, b in rounds if a.good and b.good]
                bench.figure(f"mixed.over_before.{kind}", ratios, "x")


async def _register_all(bench: Bench, server: Server, files: list[Path]) -> None:
    """Register the files one after another; base streams before and after show the time of a step."""
    workload = Workload(bench.settings.seed + 3)
    number = bench.settings.pick(8, 4, 1)
    streams = [[workload.chat(server.model, tokens=128) for _ in range(number)] for _ in range(2)]
    before, step_before = processes.memory(server.pid), await closed_loop(server, streams[0], 1)
    calls = [request_bytes(*registration(server, file.name, file)) for file in files]
    connection = await connect(server.port)
    replies: list[Reply] = []
    cpu, began = processes.cpu_seconds(server.pid), time.perf_counter()
    for call in calls:
        if not connection.open:
            connection = await connect(server.port)
        replies.append(await connection.ask(call, TIMEOUT))
    wall, cpu = time.perf_counter() - began, processes.cpu_seconds(server.pid) - cpu
    connection.close()
    after, step_after = processes.memory(server.pid), await closed_loop(server, streams[1], 1)
    registered = Cell(replies, wall, cpu, 0.0)
    key = f"many.{server.name}"
    for what, cell in (("register", registered), ("before", step_before), ("after", step_after)):
        bench.count(f"{key} {what}", cell)
    if not (registered.good and step_before.good and step_after.good):
        return
    bench.figure(f"{key}.per_second", [registered.requests_per_second], "1/s")
    bench.figure(f"{key}.p99", [registered.total_ms(99)], "ms")
    bench.figure(f"{key}.cpu_each", [cpu / len(registered.good) * 1e3], "ms")
    bench.figure(f"{key}.step_before", [step_before.gap_ms(50)], "ms")
    bench.figure(f"{key}.step_after", [step_after.gap_ms(50)], "ms")
    held_before, held_after = before.pss or before.rss, after.pss or after.rss
    bench.figure(f"{key}.memory_before", [held_before / 2**20], "MiB")
    bench.figure(f"{key}.memory_after", [held_after / 2**20], "MiB")
    if not isinstance(server, Roundhouse):
        bench.note(f"{server.name} loads each of the {len(files)} adapters into the engine when it is registered")
