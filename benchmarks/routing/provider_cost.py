"""What the gateway adds to a provider on the same machine, compared with the LiteLLM proxy; the cost of a breaker.

The provider is a Roundhouse with the scripted engine. It always produces a token every 10 ms, so only the proxies
differ. Three servers take turns: the provider itself, Roundhouse in front of it, LiteLLM in front of it.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import yaml

from benchmarks.harness import Bench
from benchmarks.load.client import request_bytes
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.pairs import compare
from benchmarks.peers.litellm import LiteLlm, installed
from benchmarks.peers.servers import IdleServer, Server, start_all
from benchmarks.report.generated import write_model
from benchmarks.streams import Scripted, scripted_recipe
from routing.providers.breaker import WINDOW, Breaker, CallOutcome, Permit, admit, ended

MODEL, PAUSE_MS, TOKENS = "scripted", 10, 32
LEVELS = (1, 16)


async def measure(bench: Bench) -> None:
    _breaker(bench)
    s = bench.settings
    folder = s.work / "routing" / "elsewhere"
    weights = write_model(s.work / "tiny-model", hidden=128, ffn=256, layers=2)
    with ExitStack() as stack:
        there = Scripted(MODEL, folder / "there", [scripted_recipe(folder, MODEL, weights)], "--slots", "1")
        start_all(stack, [there])
        url = f"http://127.0.0.1:{there.port}/v1"
        provider = _provider(folder, url)
        here = IdleServer(f"there/{MODEL}", folder / "here", [provider], "--slots", "1", "--no-prewarm")
        servers: list[Server] = [there, here]
        if installed():
            servers.append(LiteLlm(MODEL, url, folder / "litellm"))
        else:
            bench.note("LiteLLM: not measured, scripts/install-clients routing has not been run")
        start_all(stack, servers[1:])
        for level in LEVELS:
            await _level(bench, servers, level)
    for level in LEVELS:
        bench.bar(f"a provider's TTFT p50, added, {level} clients", f"elsewhere.c{level}.ttft_p50_added", "<=", 1.0)
        bench.bar(f"a provider's tokens/s, {level} clients", f"elsewhere.c{level}.tokens_ratio", ">=", 0.97)


async def _level(bench: Bench, servers: list[Server], level: int) -> None:
    number = level * bench.settings.pick(12, 6, 1)

    async def turn(server: Server, _round: int) -> Cell:
        requests = [_request(server.model)] * number
        await closed_loop(server, requests[:level], level)
        cell = await closed_loop(server, requests, level)
        bench.count(f"elsewhere c{level} {server.name}", cell)
        return cell

    rounds = await bench.turns([_named(server) for server in servers], turn)
    direct = rounds[DIRECT]
    for name, cells in rounds.items():
        key = f"elsewhere.c{level}.{name}"
        bench.chat_figures(key, cells)
        if name != DIRECT:
            more = f"elsewhere.c{level}" if name == "roundhouse" else key
            compare(bench, more, list(zip(cells, direct, strict=True)))


DIRECT = "provider"


def _named(server: Server) -> Server:
    """Rename the provider: two of the servers are called roundhouse."""
    if isinstance(server, Scripted):
        server.name = DIRECT
    return server


def _request(model: str) -> bytes:
    body = {
        "model": model, "messages": [{"role": "user", "content": "go"}], "stream": True, "max_tokens": TOKENS,
        "seed": PAUSE_MS, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return request_bytes("/v1/chat/completions", body)


def _provider(folder: Path, url: str) -> Path:
    data = {
        "kind": "provider", "id": "there", "version": 1, "protocol": "openai", "base_url": url, "plain_http": True,
        "private_addresses": True, "models": [{"name": MODEL}],
    }  # fmt: skip
    file = folder / "there.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def _breaker(bench: Bench) -> None:
    """Measure a step (admit a request, record its end) with a full window in which one in five failed."""
    steps, rounds = bench.settings.pick(50_000, 20_000, 500), list[float]()
    for _ in range(bench.settings.rounds):
        state = Breaker()
        for step in range(WINDOW):
            state = _step(state, step, float(step))
        began = time.perf_counter()
        for step in range(steps):
            state = _step(state, step, WINDOW + step / 1000)
        rounds.append((time.perf_counter() - began) / steps * 1e6)
    bench.figure("breaker.step", rounds, "µs")
    bench.bar("a step of a breaker", "breaker.step", "<=", 10.0)


def _step(state: Breaker, step: int, now: float) -> Breaker:
    state, permit = admit(state, now)
    assert isinstance(permit, Permit), "one failure in five must not open the breaker"
    return ended(state, permit, CallOutcome.SUCCESS if step % 5 else CallOutcome.FAILURE, now, 0.5)
