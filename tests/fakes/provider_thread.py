"""`tests.fakes.provider` in its own thread, for servers in other processes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.eventually import PATIENCE
from tests.fakes.provider import ProviderFake, Script, provider_fake


@contextmanager
def provider_in_thread(script: Script) -> Iterator[ProviderFake]:
    loop, started, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    fakes: list[ProviderFake] = []

    async def serve() -> None:
        async with provider_fake(script) as fake:
            fakes.append(fake)
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(PATIENCE)
    try:
        yield fakes[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
