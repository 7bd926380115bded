"""Downloads from a hub, in processes that may be ended at any time.

Requests for the same repository at the same revision share one download. Partial files stay in the hub's cache, and the
next attempt resumes them.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from models.sources.resolve import Fetched
from registry.base.child import Child
from registry.errors import Unavailable, by_status
from registry.recipes.fields import HubSource


class FetchProgress(msgspec.Struct, frozen=True, tag=True):
    """Bytes received, and bytes in total."""

    come: int
    whole: int | None


class FetchDone(msgspec.Struct, frozen=True, tag=True):
    path: str


class FetchFailed(msgspec.Struct, frozen=True, tag=True):
    """An error of `registry.errors`."""

    status: int
    code: str
    message: str
    retry_after: float | None = None


Answer = FetchProgress | FetchDone | FetchFailed


LINE = 1 << 20
AT_ONCE = 4
"""Maximum number of processes; further downloads wait."""


class Downloads:
    """Downloads in progress, shared by their callers.

    | call           | not being downloaded       | being downloaded                  |
    |----------------|----------------------------|-----------------------------------|
    | fetch          | starts a process           | waits for the same one            |
    | a caller leaves| -                          | ends with the last waiting caller |
    """

    def __init__(self) -> None:
        self._running: dict[HubSource, _Download] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def fetch(self, source: HubSource, on_progress: Fetched) -> Path:
        """Return the folder with the files. Raises as `models.sources.resolve.resolve`."""
        download = self._running.get(source) or self._begin(source)
        download.listeners.append(on_progress)
        try:
            return await asyncio.shield(download.task)
        finally:
            download.listeners.remove(on_progress)
            if not download.listeners and not download.task.done():
                self._forget(source, download)
                download.task.cancel()
                await asyncio.wait({download.task})

    def _begin(self, source: HubSource) -> "_Download":
        download = self._running[source] = _Download(source, self._places)
        download.task.add_done_callback(lambda _: self._forget(source, download))
        return download

    def _forget(self, source: HubSource, download: "_Download") -> None:
        """Forget the download, unless a newer one has replaced it, for which others may be waiting."""
        if self._running.get(source) is download:
            del self._running[source]


class _Download:
    def __init__(self, source: HubSource, places: asyncio.Semaphore) -> None:
        self.listeners: list[Fetched] = []
        self.task = asyncio.ensure_future(self._in_turn(source, places))

    async def _in_turn(self, source: HubSource, places: asyncio.Semaphore) -> Path:
        async with places:
            return await self._run(source)

    async def _run(self, source: HubSource) -> Path:
        process = await Child.python("models.sources.fetch_process", str(os.getpid()), limit=LINE)
        try:
            process.stdin.write(source.model_dump_json().encode() + b"\n")
            await process.stdin.drain()
            while line := await process.stdout.readline():
                match msgspec.json.decode(line, type=Answer):
                    case FetchProgress(come, whole):
                        for on_progress in list(self.listeners):
                            on_progress(come, whole)
                    case FetchDone(path):
                        return Path(path)
                    case FetchFailed() as failed:
                        raise by_status(failed.status)(failed.message, code=failed.code, retry_after=failed.retry_after)
        except ConnectionError:
            pass  # it ended before it had read its task
        finally:
            process.kill()
            await process.wait()
        raise Unavailable(
            f"The process that downloaded '{source.hub}' was ended. Its partial files are kept. Try again.",
            code="download_ended",
            retry_after=5,
        )
