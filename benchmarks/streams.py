"""Open streams: how many slow streams one gateway carries, and what each of them costs.

A scripted engine (`benchmarks.peers.scripted_server`) replaces the model; gateway, slot and sockets are the real ones.
Every stream produces a token a second. Measured at 1,000 streams and at more, if open files allow: streams lost, memory
per stream of the server's process tree, CPU seconds per 1,000 tokens, and how late tokens arrive.

Physical limit: open files (one socket per stream in the gateway and one in this client, which raises its soft limit to
the hard one), then a recipe's bound of 4,096 running requests per model, then the CPU of one event loop: at some 30 µs
per token a core carries about 30,000 streams of a token a second.
"""

import asyncio
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.harness import Bench
from benchmarks.load.client import Connection, connect, request_bytes
from benchmarks.load.clients import TIMEOUT, Cell
from benchmarks.load.stats import percentile
from benchmarks.peers import processes
from benchmarks.peers.servers import Roundhouse
from benchmarks.report.generated import write_model

PAUSE_MS = 1000
PER_MODEL = 4000
"""Streams of one model, as a recipe allows at most 4,096 running requests. More streams use more models and slots."""
RAMP = 200
"""Connections opened at once; more would measure the listen queue."""


class Scripted(Roundhouse):
    """Roundhouse with the scripted engine."""

    def command(self) -> Sequence[str]:
        words = list(super().command())
        words[words.index("runtime.cli.main")] = "benchmarks.peers.scripted_server"
        return [sys.executable, *words[1:]]


async def run(bench: Bench) -> None:
    s = bench.settings
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    levels = [n for n in s.pick((1000, 10000), (1000, 4000), (50,)) if n + 1000 < hard]
    bench.note(f"open files: {hard} per process")
    folder = s.work / "streams"
    waiting = str(max(levels) + 100)
    names = [f"scripted-{i}" for i in range(-(-max(levels) // PER_MODEL))]
    options = ["--slots", str(len(names)), "--max-waiting", waiting, "--no-prewarm"]
    # all connections are opened before the first request, from one address
    options += ["--bounds-factor", str(max(1.0, int(waiting) / 1024))]
    weights = write_model(s.work / "tiny-model", hidden=128, ffn=256, layers=2)  # only their size is read
    recipes = [scripted_recipe(folder, name, weights) for name in names]
    with Scripted(names[0], folder, recipes, *options, load=names) as server:
        await _level(bench, server, names, 50, 0, warm=True)
        idle = processes.memory(server.pid)
        for level in levels:
            await _level(bench, server, names, level, idle.pss or idle.rss)
    bench.bar("1,000 streams: lost", f"s{levels[0]}.lost", "<=", 0.0)


async def _level(bench: Bench, server: Roundhouse, names: list[str], level: int, idle: int, warm: bool = False) -> None:
    seconds = 2 if warm else bench.settings.pick(20, 10, 2) + level // 500
    requests = [paced_request(name, seconds, PAUSE_MS) for name in names]
    connections: list[Connection] = []
    for _ in range(0, level, RAMP):
        connections += await asyncio.gather(*(connect(server.port) for _ in range(min(RAMP, level - len(connections)))))
    cpu = processes.cpu_seconds(server.pid)
    streams = [
        asyncio.create_task(connection.ask(requests[i // PER_MODEL], TIMEOUT + seconds))
        for i, connection in enumerate(connections)
    ]
    await asyncio.sleep(seconds / 2)
    held = processes.memory(server.pid)
    replies = await asyncio.gather(*streams)
    cpu = processes.cpu_seconds(server.pid) - cpu
    for connection in connections:
        connection.close()
    cell = Cell(replies, float(seconds), cpu, 0.0)
    bench.count(f"{level} streams", cell)
    if warm:
        return
    key = f"s{level}"
    bench.figure(f"{key}.lost", [level - len(cell.good)], "streams")
    if not cell.good:
        return
    bench.figure(f"{key}.memory_per_stream", [((held.pss or held.rss) - idle) / level / 1024], "KiB")
    bench.figure(f"{key}.cpu_per_1000_tokens", [cpu / cell.tokens * 1e3], "s")
    bench.figure(f"{key}.ttft_p99", [cell.ttft_ms(99)], "ms")
    late = [gap - PAUSE_MS / 1e3 for reply in cell.good for gap in reply.gaps[:-1]]
    bench.figure(f"{key}.token_late_p99", [percentile(late, 99) * 1e3], "ms")


def paced_request(model: str, tokens: int, pause_ms: int) -> bytes:
    """Return a request to the scripted engine for `tokens` tokens, one every `pause_ms` milliseconds."""
    body = {
        "model": model, "messages": [{"role": "user", "content": "go"}], "stream": True,
        "max_tokens": tokens, "seed": pause_ms,
    }  # fmt: skip
    return request_bytes("/v1/chat/completions", body)


def scripted_recipe(folder: Path, name: str, weights: Path, **changes: object) -> Path:
    """Write a chat recipe for the scripted engine. changes: other fields, or fields with other values."""
    data = {
        "id": name, "version": 1, "task": "chat", "source": {"path": str(weights)},
        "engine": {"name": "vllm"}, "context_length": 512, "memory": {"kv_cache": "1MiB", "overhead": "1MiB"},
        "batching": {"max_requests": PER_MODEL}, "queue": {"max_waiting": 100000, "max_wait": "10m"}, **changes,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(data))
    return file
