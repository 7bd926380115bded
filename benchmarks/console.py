"""The console and traces: what open pages and traces cost, and how fast pages are.

Measures:
- chat's tokens/s and first tokens with five pages open on the stream of events, compared with none, in turns on one
  server;
- the same with traces at 100 % (OTLP to a collector that only counts), compared with a server without traces, and each
  server compared with itself;
- first paint and bytes over the wire of each page in Chromium, if installed, on loopback with an empty cache;
- the page Usage over a ledger with ten million rows in a month, for each time span and grouping.

Physical limit: the live view is computed once a second for all viewers, in some 0.2 ms of the gateway's loop; a trace
has five spans of some 10 µs each, sent from a thread that shares the interpreter with the loop.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.stats import percentile
from benchmarks.load.workload import Workload
from benchmarks.models import chat
from benchmarks.pairs import compare, in_pairs
from benchmarks.peers.servers import IdleServer, Roundhouse, Server, start_all
from benchmarks.tenants.filling import fill

if TYPE_CHECKING:
    from playwright.async_api import Page

PAGES, TOKENS, LEVEL = 5, 48, 16
TEAMS, ADAPTERS, HOURS_KEPT = 20, 8, 720


class Traced(Roundhouse):
    """The same server, with traces of all requests sent to a collector."""

    def __init__(self, model: str, folder: Path, recipe: Path, collector: int) -> None:
        super().__init__(model, folder, [recipe], "--slots", "1")
        self.name, self._collector = "roundhouse, traces", collector

    def variables(self) -> Mapping[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._collector}", "OTEL_TRACES_SAMPLER": "always_on",
        }  # fmt: skip


async def run(bench: Bench) -> None:
    s = bench.settings
    model = chat(s, s.work / "console", device=4, host=16)
    workload = Workload(s.seed)
    async with collecting(bench) as collector:
        with ExitStack() as stack:
            plain = Roundhouse(model.recipe.id, s.work / "console-plain", [model.file], "--slots", "1")
            traced = Traced(model.recipe.id, s.work / "console-traced", model.file, collector)
            start_all(stack, [plain, traced])
            bench.say("the servers are ready")
            await _pages(bench, plain, workload)
            await in_pairs(bench, "traces", plain, traced, lambda server: _load(bench, server, workload, server.name))
            if not bench.counts["exports of spans"]:
                bench.failures["no span arrived"] += 1
            await _paints(bench, plain)
    await _usage(bench, s.work / "console-usage", model.file)
    bench.bar("tokens/s with five pages against none", "pages.tokens_ratio", ">=", 0.99)
    bench.bar("TTFT p99 added by five pages", "pages.ttft_p99_added", "<=", 1.0)
    bench.bar("tokens/s with traces at 100 %", "traces.tokens_ratio", ">=", 0.98)
    bench.bar("first paint, slowest page", "paint.slowest", "<=", 150)
    bench.bar("bytes over the wire, largest page", "paint.largest", "<=", 120)
    bench.bar("page Usage over the ledger, slowest", "usage.slowest", "<=", 200)


@contextlib.asynccontextmanager
async def collecting(bench: Bench) -> AsyncIterator[int]:
    """Run a collector that accepts everything at little cost to this process; yields its port."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                bench.counts["exports of spans"] += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _load(bench: Bench, server: Server, workload: Workload, where: str) -> Cell:
    number = LEVEL * bench.settings.pick(16, 4, 1)
    requests = [workload.chat(server.model, tokens=TOKENS) for _ in range(number + LEVEL)]
    await closed_loop(server, requests[:LEVEL], LEVEL)
    cell = await closed_loop(server, requests[LEVEL:], LEVEL)
    bench.count(where, cell)
    return cell


async def _pages(bench: Bench, server: Server, workload: Workload) -> None:
    async def look() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /console/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        while data := await reader.read(1 << 16):
            bench.counts["events seen"] += data.count(b"event: now")
        writer.close()

    async def watched() -> Cell:
        async with asyncio.TaskGroup() as looking:
            viewers = [looking.create_task(look()) for _ in range(PAGES)]
            cell = await _load(bench, server, workload, "five pages")
            for viewer in viewers:
                viewer.cancel()
        return cell

    pairs = []
    for number in range(2 * bench.settings.rounds):
        before = await watched() if number % 2 else None  # A B B A, as in `in_pairs`: a server speeds up at first
        alone = await _load(bench, server, workload, "nobody looks")
        pairs.append((before or await watched(), alone))
    if not bench.counts["events seen"]:
        bench.failures["no event was seen"] += 1
    compare(bench, "pages", pairs)


# --- pages ----------------------------------------------------------------------------------------------------------
async def _paints(bench: Bench, server: Server) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        bench.note("Chromium is not installed: first paints were not measured")
        return
    from playwright.async_api import async_playwright

    address = f"http://127.0.0.1:{server.port}/console"
    paints: dict[str, list[float]] = {}
    sizes: dict[str, float] = {}
    slugs: list[str] = []
    async with async_playwright() as started:
        browser = await started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(bench.settings.pick(7, 3, 1)):
            context = await browser.new_context()
            page = await context.new_page()
            await _open(page, f"{address}/")  # the browser's own start is not timed
            slugs = await _linked(page)
            await (await context.new_cdp_session(page)).send("Network.setCacheDisabled", {"cacheDisabled": True})
            for slug in slugs:
                await _open(page, f"{address}/{slug}")
                paint = await page.evaluate(
                    """() => new Promise((seen) => new PerformanceObserver((list) => {
                        const [first] = list.getEntriesByName("first-contentful-paint");
                        if (first) seen(first.startTime);
                    }).observe({ type: "paint", buffered: true }))"""
                )
                paints.setdefault(slug, []).append(paint)
            await context.close()
        for slug in slugs:  # each with an empty cache
            context = await browser.new_context()
            page = await context.new_page()
            await _open(page, f"{address}/{slug}")
            size = await page.evaluate(
                """() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
                    .reduce((sum, entry) => sum + entry.transferSize, 0)"""
            )
            sizes[slug] = size / 1024
            await context.close()
        await browser.close()
    for slug, times in paints.items():
        bench.figure(f"paint.{slug}", [percentile(times, 50)], "ms")
    bench.figure("paint.slowest", [max(percentile(times, 50) for times in paints.values())], "ms")
    bench.figure("paint.largest", [max(sizes.values())], "KiB")


async def _linked(page: "Page") -> list[str]:
    """Return the pages in the navigation: a server in no fleet has no page about one, for example."""
    links = await page.locator("nav > a:not(.brand)").all()
    slugs = [slug for link in links if (slug := await link.get_attribute("href"))]
    if not slugs:
        raise RuntimeError(f"{page.url}: no links to pages")
    return slugs


async def _open(page: "Page", address: str) -> None:
    """Open a page. Raises RuntimeError for an error page, whose small size and fast paint would be misleading."""
    answer = await page.goto(address)
    if answer is None or not answer.ok:
        raise RuntimeError(f"{address}: {'no answer' if answer is None else answer.status}")


def _columns() -> dict[str, str]:
    """Return SQL for the columns of the last month's rows, spread over hours, teams and adapters."""
    now = int(time.time()) // 3600 * 3600
    hour, team, adapter = f"{now} - n % {HOURS_KEPT} * 3600", f"n / 7 % {TEAMS}", f"n / 11 % {ADAPTERS}"
    return {
        "at": f"{hour} + n % 3600", "hour": hour, "team": f"'team-' || ({team})", "key": f"'key' || ({team})",
        "model": "'starter-chat'", "revision": "'1'", "adapter": f"'adapter-' || ({adapter})",
    }  # fmt: skip


async def _usage(bench: Bench, folder: Path, recipe: Path) -> None:
    rows = bench.settings.pick(10_000_000, 1_000_000, 1_000)
    began = time.perf_counter()
    fill(folder / "data", rows, _columns())
    bench.note(f"{rows:,} ledger rows of {TEAMS} teams and {ADAPTERS} adapters in {time.perf_counter() - began:.0f} s")
    slowest: list[float] = []
    with IdleServer("", folder, [recipe], "--slots", "1") as server:
        for span in ("24h", "7d", "30d"):
            for by in ("model", "adapter", "team", "hour"):
                times = []
                for _ in range(bench.settings.pick(9, 5, 2)):
                    began = time.perf_counter()
                    server.http.get("/console/usage", params={"span": span, "by": by}).raise_for_status()
                    times.append((time.perf_counter() - began) * 1e3)
                bench.figure(f"usage.{span}.{by}", [percentile(times, 50)], "ms")
                slowest.append(percentile(times, 50))
    bench.figure("usage.slowest", [max(slowest)], "ms")
