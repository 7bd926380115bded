"""Reads the reports of each node while it belongs to the fleet.

| a node                                | what happens                                                          |
|---------------------------------------|-----------------------------------------------------------------------|
| joins                                 | its stream of reports is opened                                       |
| breaks off, or cannot be reached      | retried after RETRY_SECONDS                                           |
| has sent no report for REPORT_SECONDS | no new requests; running ones continue while any of them receives     |
|                                       | something, since it is only slow                                      |
| has sent nothing else either for as   | running requests end with an error (`on_silent`)                      |
| long                                  |                                                                       |
| ends its reports because it stops     | no new requests; running ones may finish                              |
| is no member any more, and silent     | forgotten, with everything it reported                                |
| joins with another address            | followed at the new address                                           |
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from fleet.membership.members import Member
from fleet.table import REPORT_SECONDS, ReportTable
from models import sse
from registry.errors import NodeFailed
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.names import PeerNames

log = logging.getLogger("roundhouse.fleet")
PATH = "/fleet/v1/reports"
RETRY_SECONDS = 0.25
LONGEST_EVENT = 16 * 2**20
"""Most bytes of a node's names, enough for thousands of adapters."""
_NAMES, _REPORT = b"event: names", b"event: report"


class Follower:
    """One task for each node. For one event loop.

    Args:
        own: this server's name; it does not follow itself.
        on_silent: called once a node has sent neither reports nor answers for REPORT_SECONDS.
    """

    def __init__(
        self, own: str, client: PeerClient, reports: ReportTable, names: PeerNames, on_silent: Callable[[str], None]
    ) -> None:
        self._own, self._client, self._reports, self._names, self._on_silent = own, client, reports, names, on_silent
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        """A task for each node that does not report, which ends its requests if it sends nothing else either."""

    def set(self, members: Sequence[Member]) -> None:
        """Set the members of the fleet to follow."""
        present = {
            (member.name, member.address) for member in members if member.role == "node" and member.name != self._own
        }
        now = asyncio.get_running_loop().time()
        for name, address in self._tasks.keys() - present:
            is_moved = name in {other for other, _ in present}
            is_there = self._reports.fresh(name, now) is not None or self._client.hears(name, REPORT_SECONDS)
            if not is_moved and is_there:
                continue  # its lease ended because it is slow, or because the database was unreachable
            self._tasks.pop((name, address)).cancel()
            if not is_moved:
                self._reports.remove(name)
                self._names.remove(name)
                self._keep_requests(name)
                self._on_silent(name)
        for name, address in present - self._tasks.keys():
            self._tasks[name, address] = asyncio.create_task(self._follow(name, address), name=f"follow-{name}")

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._ending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, node: str, address: str) -> None:
        is_silent = False
        while True:
            try:
                async for _ in self._events(node, address):
                    if is_silent:
                        log.info("a node reports again", extra={"node": node})
                    self._keep_requests(node)
                    is_silent = False
                self._reports.remove(node)  # it is stopping: its running requests may finish
                is_silent = True
            except Exception as error:  # no error may end the loop
                if not isinstance(error, NodeFailed | sse.TooLong):
                    log.exception("a node's reports cannot be read", extra={"node": node})
                if not is_silent:
                    log.warning("a node does not report", extra={"node": node, "cause": str(error) or "a long event"})
                    self._keep_requests(node)
                    self._ending[node] = asyncio.create_task(self._end_requests(node), name=f"end-{node}")
                else:
                    self._reports.remove(node)  # failed twice in a row: its last report is out of date
                is_silent = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _end_requests(self, node: str) -> None:
        """Wait until a node has sent nothing at all for REPORT_SECONDS, and end its requests."""
        while self._client.hears(node, REPORT_SECONDS):  # noqa: ASYNC110 - many tokens
            await asyncio.sleep(RETRY_SECONDS)
        self._on_silent(node)

    def _keep_requests(self, node: str) -> None:
        if (ending := self._ending.pop(node, None)) is not None:
            ending.cancel()

    async def _events(self, node: str, address: str) -> AsyncIterator[None]:
        loop, splitter = asyncio.get_running_loop(), sse.Splitter(LONGEST_EVENT)
        async with self._client.follow(node, address, PATH, REPORT_SECONDS) as chunks:
            async for chunk in chunks:
                for event in splitter.feed(chunk):
                    data = sse.data_of(event)
                    if event.startswith(_REPORT):
                        verdict = self._reports.take(data, loop.time(), node, address)
                        if verdict != "taken":
                            log.warning("a report is ignored", extra={"node": node, "cause": verdict})
                    elif event.startswith(_NAMES):
                        self._names.take(node, data)
                    yield
