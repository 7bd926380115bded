"""Long prompts beside what is measured: the base is asked for one token of answer, again and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench
from benchmarks.load.client import Reply, connect
from benchmarks.load.clients import TIMEOUT, Cell
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import Server


@asynccontextmanager
async def prefills(bench: Bench, server: Server, letters: int) -> AsyncIterator[None]:
    """Inside, one client asks so; with no letters nobody does."""
    if not letters:
        yield
        return
    over, replies, workload = asyncio.Event(), list[Reply](), Workload(bench.settings.seed + 5)

    async def ask() -> None:
        connection = await connect(server.port)
        while not over.is_set() and connection.open:
            text = workload.text(letters // 3)[:letters]  # a word has two letters and a blank at least
            replies.append(await connection.ask(workload.chat(server.model, text=text, tokens=1), TIMEOUT))
        connection.close()

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        over.set()
        await asking
        bench.count(f"prefills {server.name}", Cell(replies, 1.0, 0.0, 0.0))
