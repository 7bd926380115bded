"""Long prompts beside what is measured: the base is asked for one token of answer, again and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, ask_until
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import Server


@asynccontextmanager
async def prefills(bench: Bench, server: Server, letters: int) -> AsyncIterator[None]:
    """Inside, one client asks so; with no letters nobody does."""
    if not letters:
        yield
        return
    over, workload = asyncio.Event(), Workload(bench.settings.seed + 5)

    def request() -> bytes:
        text = workload.text(letters // 3)[:letters]  # a word has two letters and a blank at least
        return workload.chat(server.model, text=text, tokens=1)

    asking = asyncio.create_task(ask_until(over, server, request))
    try:
        yield
    finally:
        over.set()
        bench.count(f"prefills {server.name}", Cell(await asking))
