"""What keys, limits and the ledger cost on a real server, and how one team affects another."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness import Bench
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.stats import percentile
from benchmarks.load.workload import Workload
from benchmarks.models import Chat, chat
from benchmarks.pairs import in_pairs
from benchmarks.peers import litellm
from benchmarks.peers.servers import Roundhouse, Server, start_all
from benchmarks.report.generated import write_model
from benchmarks.streams import Scripted, paced_request, scripted_recipe
from tenants.caller import SCOPES, ServiceClass
from tenants.keys import secret
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.limits.records import Kind, Limit
from tenants.limits.table import LimitTable
from tenants.storage.opening import open_tables

TOKENS, FLOOD = 32, 200
SCRIPTED_TOKENS, SCRIPTED_PAUSE_MS = 8, 20
QUEUED_MS, SLOWER = 5.0, 1.2
"""How much other teams may delay a team: milliseconds in the queue, and a factor on its first tokens. What exceeds that
is measured in steps."""
_QUEUE = re.compile(rb"queue;dur=([0-9.]+)")


class Keyed(Roundhouse):
    """The same server with the teams `flood` and `quiet`, and a key for each. `quiet` has limits of all kinds."""

    def __init__(self, model: str, folder: Path, recipe: Path, more: Mapping[str, float] | None = None) -> None:
        """Create the teams and keys. `more` has the weights of further teams by name."""
        super().__init__(model, folder, [recipe], "--slots", "1")
        self.name = "roundhouse, keys"
        data = folder / "data"
        data.mkdir(parents=True)
        tables = open_tables(data, None)
        table = KeyTable(tables, secret.load_pepper(data, None))
        self.keys = {}
        for team, weight in {"flood": 1.0, "quiet": 1.0, **(more or {})}.items():
            table.create_team(team, weight=weight)
            _, self.keys[team] = table.create(KeyRequest(team, scopes=SCOPES, ceiling=ServiceClass.CRITICAL))
        limits = LimitTable(tables)
        for kind in (Kind.REQUESTS, Kind.TOKENS, Kind.AT_ONCE, Kind.MONTH):
            limits.set(Limit("", "team", "quiet", kind, 10**12))
        tables.close()
        self.http.headers["x-api-key"] = self.keys["quiet"]

    def request_of(self, team: str, request: bytes, tier: str = "interactive") -> bytes:
        line, rest = request.split(b"\r\n", 1)
        return line + f"\r\nx-api-key: {self.keys[team]}\r\nX-Tier: {tier}\r\n".encode() + rest


class ScriptedKeyed(Scripted, Keyed):
    """The server with keys on the scripted engine."""


async def overhead(bench: Bench) -> None:
    """Compare the server with keys with one without, and with LiteLLM's proxy."""
    s = bench.settings
    model = chat(s, s.work / "tenants", device=4, host=16)
    workload = Workload(s.seed)

    def ask(server: Server) -> bytes:
        return workload.chat(server.model, tokens=TOKENS)

    with ExitStack() as stack:
        plain = Roundhouse(model.recipe.id, s.work / "tenants-open", [model.file], "--slots", "1")
        keyed = Keyed(model.recipe.id, s.work / "tenants-keys", model.file)
        start_all(stack, [plain, keyed])
        bench.say("the servers are ready")
        levels = s.pick((1, 16, 64), (1, 16), (2,))
        for level in levels:
            await in_pairs(bench, f"c{level}", plain, keyed, partial(_load, bench, level, ask))
        ratios = [result for level in levels if (result := bench.figures.get(f"c{level}.tokens_ratio"))]
        if ratios:
            bench.figures["worst.tokens_ratio"] = min(ratios, key=lambda ratio: ratio.value)
        if litellm.installed():
            url = f"http://127.0.0.1:{plain.port}/v1"
            peer = stack.enter_context(litellm.LiteLlm(plain.model, url, s.work / "tenants-litellm"))
            for level in levels:
                await in_pairs(bench, f"c{level}.litellm", plain, peer, partial(_load, bench, level, ask), s.rounds)
        else:
            bench.note("LiteLLM's proxy is not installed: scripts/install-clients routing")


async def by_script(bench: Bench) -> None:
    """Compare both on the scripted engine, because the first tokens of a real one hide so small a difference."""

    def ask(server: Server) -> bytes:
        return paced_request(server.model, SCRIPTED_TOKENS, SCRIPTED_PAUSE_MS)

    s = bench.settings
    weights = write_model(s.work / "tiny-model", hidden=128, ffn=256, layers=2)  # only their size is read
    recipe = scripted_recipe(s.work / "tenants-scripted", "scripted", weights)
    with ExitStack() as stack:
        plain = Scripted("scripted", s.work / "tenants-scripted-open", [recipe], "--slots", "1")
        keyed = ScriptedKeyed("scripted", s.work / "tenants-scripted-keys", recipe)
        start_all(stack, [plain, keyed])
        for level in s.pick((1, 64), (1, 64), (2,)):
            await in_pairs(bench, f"scripted.c{level}", plain, keyed, partial(_load, bench, level, ask))


async def beside(bench: Bench) -> None:
    """Measure the effect of one team on another."""
    s = bench.settings
    model = chat(s, s.work / "tenants", device=4, host=16)
    workload = Workload(s.seed)
    with ExitStack() as stack:
        keyed = Keyed(model.recipe.id, s.work / "tenants-flood", model.file)
        start_all(stack, [keyed])
        await _flood(bench, keyed, model, workload)
        await _classes(bench, keyed, workload)


async def _load(bench: Bench, level: int, ask: Callable[[Server], bytes], server: Server) -> Cell:
    number = max(bench.settings.pick(40, 20, 1), level * bench.settings.pick(6, 3, 1))
    requests = [ask(server) for _ in range(number + level)]
    if isinstance(server, Keyed):
        requests = [server.request_of("quiet", request) for request in requests]
    await closed_loop(server, requests[:level], level)
    cell = await closed_loop(server, requests[level:], level)
    bench.count(f"c{level} {server.name}", cell)
    return cell


async def _flood(bench: Bench, server: Keyed, model: Chat, workload: Workload) -> None:
    s = bench.settings
    at_once, number = s.pick(FLOOD, FLOOD, 40), s.pick(4 * FLOOD, 2 * FLOOD, 40)

    def asks(team: str, count: int) -> list[bytes]:
        return [server.request_of(team, workload.chat(server.model, tokens=TOKENS)) for _ in range(count)]

    async def alone() -> float:
        cell = await closed_loop(server, asks("flood", number), at_once)
        bench.count("flood alone", cell)
        return cell.tokens_per_second

    def endless(over: asyncio.Event) -> Iterator[bytes]:
        while not over.is_set():
            yield from asks("quiet", 1)

    kept, waits, steps, alone_waits = [], [], [], []
    for _ in range(s.rounds):
        before = await alone()
        quiet_alone = await closed_loop(server, asks("quiet", s.pick(40, 16, 4)), 2)
        over = asyncio.Event()
        flood = asyncio.create_task(closed_loop(server, asks("flood", number), at_once))
        await asyncio.sleep(0.2)
        quiet = asyncio.create_task(closed_loop(server, endless(over), 2))
        beside = await flood
        over.set()
        quiet_cell = await quiet
        end = max(reply.arrivals[-1] for reply in beside.good)
        tokens = sum(arrival <= end for reply in quiet_cell.good for arrival in reply.arrivals)
        for where, cell in (("quiet beside a flood", quiet_cell), ("quiet alone", quiet_alone), ("flood", beside)):
            bench.count(where, cell)
        kept.append(2 * (beside.tokens + tokens) / beside.wall / (before + await alone()))
        waits.append(percentile([_queued(reply) for reply in quiet_cell.good], 99))
        step = percentile([gap for reply in beside.good for gap in reply.gaps], 50) * 1e3
        steps.append((waits[-1] - QUEUED_MS) / step)
        alone_waits.append(percentile([_queued(reply) for reply in quiet_alone.good], 99))
    bench.figure("flood.kept", kept, "x")
    bench.figure("quiet.queue_p99", waits, "ms")
    bench.figure("quiet.queue_p99_added_steps", steps, "steps")
    bench.figure("quiet.queue_p99_alone", alone_waits, "ms")
    bench.note(f"{model.recipe.batching.max_requests} places; the flood's tokens/s include those of the quiet team")


async def _classes(bench: Bench, server: Keyed, workload: Workload) -> None:
    s = bench.settings

    def asks(tier: str, count: int) -> list[bytes]:
        team = "flood" if tier == "batch" else "quiet"
        return [server.request_of(team, workload.chat(server.model, tokens=TOKENS), tier) for _ in range(count)]

    def endless(tier: str) -> Iterator[bytes]:
        while not over.is_set():
            yield from asks(tier, 1)

    added, long, waited, part = [], [], [], []
    for _ in range(s.rounds):
        over = asyncio.Event()
        alone = await closed_loop(server, asks("critical", s.pick(200, 40, 4)), 2)
        batch = asyncio.create_task(closed_loop(server, endless("batch"), s.pick(96, 96, 20)))
        await asyncio.sleep(s.pick(2.0, 1.0, 0.2))  # skips its beginning, when all prompts share one step
        beside = await closed_loop(server, asks("critical", s.pick(200, 40, 4)), 2)
        flooding = await closed_loop(server, asks("critical", s.pick(300, 150, 20)), s.pick(96, 96, 20))
        critical_end = max(reply.arrivals[-1] for reply in flooding.good)
        over.set()
        slow = await batch
        of = (("critical alone", alone), ("critical", beside), ("critical flood", flooding), ("batch", slow))
        for where, cell in of:
            bench.count(where, cell)
        began = min(reply.sent for reply in flooding.good)
        during = sum(reply.tokens for reply in slow.good if began < reply.arrivals[-1] <= critical_end)
        part.append(during / max(1, during + flooding.tokens))
        gaps = [gap for reply in slow.good for gap in reply.gaps]
        waited.append(beside.ttft_ms(99) - SLOWER * alone.ttft_ms(99))
        added.append(waited[-1] / percentile(gaps, 50) / 1e3)
        long.append(waited[-1] / percentile(gaps, 99) / 1e3)
    bench.figure("critical.p99_added", waited, "ms")
    bench.figure("critical.p99_added_steps", added, "steps")
    bench.figure("critical.p99_added_long_steps", long, "steps")
    bench.figure("batch.part", part, "x")


def _queued(reply: Reply) -> float:
    """Return the milliseconds in the queue from the response's header."""
    result = _QUEUE.search(reply.head)
    if result is None:
        raise ValueError("the response does not say how long it was in the queue")
    return float(result[1])
