"""A front and nodes in one event loop, with scripted engines. Everything between them is real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from fleet import choose, table
from fleet.certificates import issue, make_authority
from fleet.epochs import DesiredReplicas
from fleet.membership.members import Member
from fleet.signatures import FleetKey
from fleet.table import ReportTable
from fleet.tls import FleetTls
from runtime.config.device import Device
from runtime.gateway.core import Gateway
from runtime.gateway.peers import connection, following, views
from runtime.gateway.peers.backend import PeerBackend
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.following import Follower
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.peers.opening import new_member
from runtime.gateway.peers.reporting import Reporter, RequestTimer
from runtime.gateway.peers.service import Fleet as FleetService
from runtime.gateway.peers.views import PeerCards
from runtime.http.fleet.app import fleet_application
from runtime.http.fleet.fronts import FrontMiddleware
from runtime.server.listener import FleetListener
from tests.eventually import PATIENCE
from tests.system.serving import free_port
from tests.unit.http.fakes import FakeGateway, application


def with_fleet(gateway: Gateway, fleet: Any) -> None:
    gateway.services = replace(gateway.services, fleet=fleet)


def identity(name: str, folder: Path, authority: Path, key: bytes | None) -> FleetTls | FleetKey:
    if key is not None:
        return FleetKey(name, key)
    issue(authority, name, folder / "certificates")
    return FleetTls(folder / "certificates")


class FakeMembership(SimpleNamespace):
    """A node's membership in its fleet, without a database."""

    @property
    def is_leaving(self) -> bool:
        return not self.takes_requests


class Node:
    """A node: its gateway, its port for the fleet and its reports. key: the fleet's, instead of certificates."""

    def __init__(self, name: str, folder: Path, authority: Path, key: bytes | None = None, **settings: Any) -> None:
        port = free_port()
        self.name, self.address = name, f"http{'' if key else 's'}://127.0.0.1:{port}"
        self.identity = identity(name, folder, authority, key)
        settings = {"header_seconds": PATIENCE, **settings}  # no connection is closed because this process is slow
        self.timer = RequestTimer()
        listen = f"127.0.0.1:{port}"
        self.fake = FakeGateway(folder, fleet="tests", fleet_listen=listen, sinks=[self.timer], **settings)
        self.fake.gateway.phase = "ready"
        services = self.fake.gateway.services
        self.is_drained = False
        """Whether its row says that it is drained."""
        self.fleet = FakeMembership(
            takes_requests=True,
            is_draining=False,
            has_moved=lambda _: False,
            certificate_seconds=None,
            clock_offset=0.0,
            look=self._look,
            own=new_member(name, "data", self.address),
        )
        self.reporter = Reporter(
            cast(Any, self.fleet), self.fake.names, services.models, cast(Any, self.fake.residency),
            Device("cpu", "cpu", "cpu", 1 << 30, 1 << 30), lambda: self.fake.service.stored_digests,
            self.timer.times_of,
        )  # fmt: skip
        self.fleet.events = self.reporter.events
        with_fleet(self.fake.gateway, self.fleet)
        public = application(self.fake)
        self.app = fleet_application(public, self.fake.settings, lambda: self.fake.gateway, name, self.identity)
        self.listener = FleetListener(self.app, self.fake.settings, self.identity.server)

    @property
    def is_draining(self) -> bool:
        return bool(self.fleet.is_draining)

    @is_draining.setter
    def is_draining(self, value: bool) -> None:
        self.fleet.is_draining = value

    async def _look(self) -> None:
        """Read its row in the database as if another server had changed it."""
        self.is_draining = self.is_drained

    @property
    def member(self) -> Member:
        return Member(self.name, 1, "node", self.address, "1.0", self.is_draining)

    async def kill(self) -> None:
        """Break its connections and stop listening."""
        server = self.listener._server
        for listening in server.servers:
            listening.close()
        for made in list(server.server_state.connections):
            made.transport.abort()


class Fleet:
    """A front and its nodes. `client` calls the front."""

    def __init__(self, folder: Path, state: Any, key: bytes | None = None) -> None:
        self.folder, self.authority, self.key = folder, folder / "authority", key
        make_authority(self.authority)
        own = identity("front-1", folder / "front-1", self.authority, key)
        self.peer_client = PeerClient(own)
        self.front = FakeGateway(folder / "front", [], fleet="tests", front=True, state=state)
        self.reports, self.names = ReportTable(), PeerNames(self.front.state)
        self.follower = Follower("front-1", self.peer_client, self.reports, self.names, self.peer_client.lost)
        self.front.gateway.phase = "ready"
        self.backend = PeerBackend(None, self.names, self.reports, self.peer_client)
        gateway = self.front.gateway
        gateway._backends = {"peers": self.backend, **gateway._backends}
        cards, member, no_members = PeerCards(None, self.names), new_member("front-1", "", None), cast(Any, None)
        members = FleetService("tests", member, own, no_members, self.peer_client, self.reports, self.names, cards)
        members.placer = cast(Any, SimpleNamespace(row=DesiredReplicas(0, {}), is_old=False))
        with_fleet(gateway, members)
        self.app: FastAPI = application(self.front, [(FrontMiddleware, {})])
        self.nodes: list[Node] = []
        self.client: httpx.AsyncClient

    async def start(self, *nodes: Node) -> None:
        for node in nodes:
            await node.listener.start()
        self.nodes += nodes
        self.follower.set([node.member for node in self.nodes])
        async with asyncio.timeout(PATIENCE):
            while any(node.name not in self.names._nodes or self.reports.get(node.name) is None for node in nodes):
                await asyncio.sleep(0.01)

    def node(self, name: str, **settings: Any) -> Node:
        return Node(name, self.folder / name, self.authority, self.key, **settings)


@asynccontextmanager
async def opened(folder: Path, state: Any = None, key: bytes | None = None) -> AsyncIterator[Fleet]:
    """Yield a fleet. state: the names that the servers share; None: no adapters. key: instead of certificates.

    Time-outs are long, so that no node seems silent because this process waited for a CPU.
    """
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for module in (table, following, views, choose):
            patch.setattr(module, "REPORT_SECONDS", PATIENCE)
        patch.setattr(connection, "OPEN_SECONDS", PATIENCE)
        fleet = Fleet(folder, state, key)
        transport = httpx.ASGITransport(app=fleet.app)
        fleet.client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://test"))
        try:
            yield fleet
        finally:
            await fleet.follower.close()
            await fleet.peer_client.close()
            for node in fleet.nodes:
                await node.listener.stop(0.1)
        requests = fleet.peer_client._beginning, fleet.peer_client._running
        assert not any(any(by_node.values()) for by_node in requests), "all that have ended are forgotten"
