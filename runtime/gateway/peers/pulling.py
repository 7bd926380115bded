"""Copies missing files of adapters and routers from a node that has them.

| files of a version whose model is here      | then                                                                |
|---------------------------------------------|---------------------------------------------------------------------|
| are here                                    | nothing                                                             |
| are on another node                         | copied, newest version first, and used once their digest is checked |
| break off, come slower than LEAST_RATE, or  | deleted; the node is logged, and the next one is tried              |
| have a wrong digest                         |                                                                     |
| come from no node                           | tried again after RETRY_SECONDS                                     |
"""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial

from adapters.service import AdapterService
from fleet.table import ReportTable
from registry.errors import NodeFailed, RoundhouseError, Unfit
from registry.records import RouterVersion, Version
from runtime.gateway.adapters import Adapters
from runtime.gateway.names import Names
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.routing.store import RouterStore

log = logging.getLogger("roundhouse.fleet")
Take = Callable[[AsyncIterator[bytes]], Awaitable[None]]
PACKED_MORE = 64 * 2**10
"""Bytes by which a packed router may exceed its files."""
LOOK_SECONDS = 1.0
"""Seconds between two checks for missing files while nothing changes."""
RETRY_SECONDS = 5.0
SILENCE_SECONDS = 10.0
"""Seconds without data after which a copy is abandoned."""
LEAST_RATE = 128 * 2**10
"""Bytes per second below which a copy is abandoned, since the other files wait for it."""
COPY_SECONDS = 30.0
"""Longest time that a registration waits for a second copy."""
POLL_SECONDS = 0.05


class Puller(ABC):
    """Copies one item after another, in one task. For one event loop."""

    def __init__(self, what: str, peers: PeerNames, reports: ReportTable, client: PeerClient) -> None:
        self._what, self._peers, self._reports, self._client = what, peers, reports, client
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._retry_at: dict[str, float] = {}
        """Time to retry adapters that no node could send, by digest."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"copies-of-{self._what}s")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def wake(self) -> None:
        """Note that names or the files of nodes have changed."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                if await self._pull_next():
                    continue
            except Exception:  # no error may keep the other files from being copied
                log.exception(f"{self._what}s cannot be copied")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):  # wait_for may drop a cancellation
                    await self._changed.wait()

    @abstractmethod
    async def _pull_next(self) -> bool:
        """Copy the next missing item that was not tried recently. Returns False if there is none."""

    def _may_try(self, digest: str) -> bool:
        return self._retry_at.get(digest, 0.0) <= asyncio.get_running_loop().time()

    async def _pull(self, name: str, digest: str, size: int, nodes: Sequence[str], take: Take) -> bool:
        """Pull files of `size` bytes from one of the nodes, in random order. Returns False if no node sent them."""
        now = asyncio.get_running_loop().time()
        self._retry_at = {one: at for one, at in self._retry_at.items() if at > now}
        self._retry_at[digest] = now + RETRY_SECONDS
        for node in random.sample(nodes, len(nodes)):
            facts = {self._what: name, "digest": digest, "node": node}
            try:
                async with (
                    asyncio.timeout(SILENCE_SECONDS + size / LEAST_RATE),
                    aclosing(self._stream(node, digest)) as stream,
                ):
                    await take(stream)
            except (RoundhouseError, TimeoutError) as error:
                cause = error.message if isinstance(error, RoundhouseError) else "it was sent too slowly"
                log.warning(f"{self._what} not copied", extra={**facts, "cause": cause})
            else:
                log.info(f"{self._what} copied", extra=facts)
                del self._retry_at[digest]
                return True
        return False

    async def _stream(self, node: str, digest: str) -> AsyncGenerator[bytes, None]:
        if (stored := self._reports.get(node)) is None:
            raise NodeFailed(f"Node '{node}' does not report any more.")
        path = f"/fleet/v1/{self._what}s/{digest}"
        async with self._client.follow(node, stored.report.address, path, SILENCE_SECONDS) as chunks:
            async for chunk in chunks:
                yield chunk

    def _reports_now(self, node: str) -> bool:
        return self._reports.fresh(node, asyncio.get_running_loop().time()) is not None


class AdapterPuller(Puller):
    def __init__(
        self,
        service: AdapterService,
        adapters: Adapters,
        own: Names,
        peers: PeerNames,
        reports: ReportTable,
        client: PeerClient,
    ) -> None:
        super().__init__("adapter", peers, reports, client)
        self._service, self._adapters, self._own = service, adapters, own

    async def wait_for_copy(self, version: Version) -> None:
        """Wait until a second node has the files of a version that was registered here.

        Returns at once if no other node has the model. Gives up after COPY_SECONDS and logs that.
        """
        end = asyncio.get_running_loop().time() + COPY_SECONDS
        while nodes := [node for node in self._peers.nodes_of(version.key.base) if self._reports_now(node)]:
            if any(self._peers.has_files(node, version.digest) for node in nodes):
                return
            if asyncio.get_running_loop().time() >= end:
                log.warning("no other node has copied an adapter yet", extra={"adapter": str(version.key)})
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _pull_next(self) -> bool:
        """Copy the newest version whose files are missing here and present on another node."""
        models, here = self._own.catalog.recipes, self._service.stored_digests
        missing = [
            version
            for adapter in self._service.list()
            if adapter.key.base in models
            for version in adapter.versions
            if version.digest not in here and self._may_try(version.digest)
        ]
        possible = [version for version in missing if self._sources(version.digest)]
        if not possible:
            return False
        version = max(possible, key=lambda one: one.created)
        take = partial(self._service.take_copy, version)
        if await self._pull(str(version.key), version.digest, version.bytes, self._sources(version.digest), take):
            await self._adapters.follow()
        return True

    def _sources(self, digest: str) -> list[str]:
        return [node for node in self._peers.nodes_storing(digest) if self._reports_now(node)]


class RouterPuller(Puller):
    """The same for routers. Any node may have them, so each is tried. Also runs on a front."""

    def __init__(self, routers: RouterStore, peers: PeerNames, reports: ReportTable, client: PeerClient) -> None:
        super().__init__("router", peers, reports, client)
        self._routers = routers

    async def _pull_next(self) -> bool:
        nodes = [node for node in self._peers.nodes() if self._reports_now(node)]
        version = next((one for one in self._routers.missing() if self._may_try(one.digest)), None)
        if version is None or not nodes:
            return False
        take = partial(self._take, version)
        await self._pull(version.digest[7:15], version.digest, version.bytes, nodes, take)
        return True

    async def _take(self, version: RouterVersion, stream: AsyncIterator[bytes]) -> None:
        data, most = bytearray(), version.bytes + PACKED_MORE
        async for chunk in stream:
            data += chunk
            if len(data) > most:
                raise Unfit("There are more bytes than the router has.", code="wrong_copy")
        await self._routers.take_copy(version, bytes(data))
