"""Disturb a measurement with a stream of long prompts to the base, each answered with one token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell, ask_until
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import Server


@asynccontextmanager
async def prefills(bench: Bench, server: Server, letters: int) -> AsyncIterator[None]:
    """Run one client that sends prompts of so many letters without a pause; none if `letters` is 0."""
    if not letters:
        yield
        return
    over, workload = asyncio.Event(), Workload(bench.settings.seed + 5)

    def request() -> bytes:
        text = workload.text(letters // 3)[:letters]  # a word has at least two letters and a space
        return workload.chat(server.model, text=text, tokens=1)

    asking = asyncio.create_task(ask_until(over, server, request))
    try:
        yield
    finally:
        over.set()
        bench.count(f"prefills {server.name}", Cell(await asking))
