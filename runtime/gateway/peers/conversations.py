"""Conversations of routers that began on another server. Each has a home: the node to which its key hashes.

| a conversation               | then                                                              |
|------------------------------|-------------------------------------------------------------------|
| gets a target here           | its home is told, and again once half of its lifetime has passed  |
| goes on, and is unknown here | its home is asked; after ASK_SECONDS it counts as new             |
| has its home here            | it is stored in memory like this server's own                     |

Homes keep nothing across restarts, and new ones know nothing; the router then chooses a target again.
"""

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import quote

from fleet.index import position_of
from fleet.table import ReportTable
from registry.errors import NodeFailed
from runtime.gateway.peers.connection import PeerClient

PATH = "/fleet/v1/conversations"
ASK_SECONDS = 0.02
TELL_SECONDS = 2.0
MOST_TELLING = 256
"""Most messages to homes at one time; further ones are not sent."""
LONGEST_NAME = 512


class PeerConversations:
    """Conversations that began on other servers. For one event loop.

    Args:
        own: this server's name.
        nodes: names of the present nodes, in the same order on every server.
    """

    def __init__(self, own: str, nodes: Callable[[], Sequence[str]], reports: ReportTable, client: PeerClient) -> None:
        self._own, self._nodes, self._reports, self._client = own, nodes, reports, client
        self._telling: set[asyncio.Task[None]] = set()

    async def find(self, key: bytes) -> str | None:
        """Find the target of a conversation. None if it is unknown or no answer comes in time."""
        node, address = self._home(key)
        if address is None:
            return None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer = await self._client.ask("GET", node, address, f"{PATH}/{key.hex()}")
        except (NodeFailed, TimeoutError):
            return None
        return None if answer is None else answer.decode("utf-8", "replace")[:LONGEST_NAME]

    def tell(self, key: bytes, target: str, seconds: float) -> None:
        """Start announcing a conversation's target."""
        node, address = self._home(key)
        if address is None or len(self._telling) >= MOST_TELLING:
            return
        path = f"{PATH}/{key.hex()}?seconds={seconds:g}&target={quote(target, safe='')}"
        task = asyncio.create_task(self._tell(node, address, path), name="tell-home")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, node: str, address: str, path: str) -> None:
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self._client.ask("PUT", node, address, path)
        except (NodeFailed, TimeoutError):  # treated as a new conversation
            pass

    def _home(self, key: bytes) -> tuple[str, str | None]:
        """Find a key's node and its address. The address is None for this server or a silent one."""
        nodes = self._nodes()
        if not nodes:
            return "", None
        node = max(nodes, key=lambda name: position_of(f"{key.hex()} {name}"))
        stored = None if node == self._own else self._reports.get(node)
        return node, None if stored is None else stored.report.address
