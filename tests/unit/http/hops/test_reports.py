"""How a front handles a member with a valid certificate whose reports or answers are faulty."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest

from fleet.membership.members import Member
from fleet.reports import MAX_REPLICAS, encode
from fleet.table import ReportTable
from models import sse
from registry.errors import NodeFailed
from runtime.gateway.peers import following
from runtime.gateway.peers.following import Follower
from runtime.residency.states import ModelState
from tests.eventually import PATIENCE
from tests.system.serving import free_port
from tests.unit.http.fakes import recipe
from tests.unit.http.hops.rig import Fleet, Node, identity, opened
from tests.unit.http.hops.test_front import EMBED, begun, scripted, until

NO_URLS = ("https://127.0.0.1:99999", "https://[::1", f"https://{'a' * 64}.example:8443", "https://a..b:8443")


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path) as fleet:
        yield fleet


async def test_faulty_reports_are_counted_and_change_nothing(fleet: Fleet) -> None:
    node, has_sent = scripted(fleet.node("node-1")), asyncio.Event()

    async def events() -> AsyncIterator[tuple[str, bytes]]:
        yield "names", node.reporter.names()
        good = node.reporter.report()
        yield "report", encode(good)
        for wrong in (
            b"x" * (10 << 20),
            encode(good),
            encode(msgspec.structs.replace(good, seq=0)),
            encode(msgspec.structs.replace(good, seq=9, uptime=good.uptime + 3600.0)),
            encode(msgspec.structs.replace(good, seq=9, node="node-2")),
            b"{",
        ):
            yield "report", wrong
        has_sent.set()
        await asyncio.sleep(PATIENCE)

    node.fleet.events = events
    await fleet.start(node)
    await until(lambda: sum(fleet.reports.ignored.values()) == 6)
    assert has_sent.is_set()
    assert fleet.reports.ignored == {"too_large": 1, "old": 2, "future": 1, "sender": 1, "malformed": 1}
    stored = fleet.reports.get("node-1")
    assert stored is not None
    assert (stored.report.seq, len(fleet.reports)) == (1, 1)
    assert (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code == 200


async def test_an_endless_event_closes_the_stream_which_is_opened_again(fleet: Fleet) -> None:
    node, opens = scripted(fleet.node("node-1")), list[int]()

    async def events() -> AsyncIterator[tuple[str, bytes]]:
        opens.append(1)
        if len(opens) == 1:
            yield "names", b" " * (17 << 20)
        async for event in node.reporter.events():
            yield event

    node.fleet.events = events
    await fleet.start(node)
    assert len(opens) > 1
    assert (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code == 200


class Liar:
    """A member that claims to have what another node has, and sends `answer` to each request."""

    def __init__(self, fleet: Fleet, honest: Node, answer: bytes) -> None:
        self._fleet, self._honest, self._answer = fleet, honest, answer
        self._identity: Any = identity("liar", fleet.folder / "liar", fleet.authority, None)
        self.port = free_port()
        self.member = replace(honest.member, name="liar", address=f"https://127.0.0.1:{self.port}")
        self._tasks: set[asyncio.Task[Any]] = set()
        self.requests = 0

    async def __aenter__(self) -> "Liar":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._identity.server)
        self._fleet.follower.set([self._honest.member, self.member])
        await until(lambda: self._fleet.reports.get("liar") is not None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.ensure_future(asyncio.shield(self._serve(reader, writer))))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" /fleet/v1/reports " in head:
            report = msgspec.structs.replace(
                self._honest.reporter.report(), node="liar", address=self.member.address, draining=False
            )
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            writer.write(sse.event(msgspec.json.decode(self._honest.reporter.names()), "names"))
            writer.write(sse.event(msgspec.json.decode(encode(report)), "report"))
            await asyncio.sleep(PATIENCE)
        self.requests += 1
        writer.write(self._answer)
        writer.close()


@pytest.mark.parametrize("address", ["https://[::1", "https://127.0.0.1:1", "http://10.0.0.1:80"])
async def test_requests_go_only_to_the_address_at_which_a_member_is_followed(fleet: Fleet, address: str) -> None:
    honest, liar = scripted(fleet.node("node-1")), fleet.node("node-2")

    async def events() -> AsyncIterator[tuple[str, bytes]]:
        yield "names", honest.reporter.names()
        yield "report", encode(msgspec.structs.replace(liar.reporter.report(), address=address))
        await asyncio.sleep(PATIENCE)

    liar.fleet.events = events
    await fleet.start(honest)
    await liar.listener.start()
    fleet.nodes.append(liar)
    fleet.follower.set([honest.member, liar.member])
    await until(lambda: fleet.reports.ignored["sender"] == 1)
    for _ in range(4):
        answer = await fleet.client.post("/v1/embeddings", json=EMBED)
        assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1"), answer.text


@pytest.mark.parametrize("address", NO_URLS)
async def test_a_member_whose_address_is_no_url_is_named_in_the_log(
    fleet: Fleet, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "roundhouse.fleet")
    honest = scripted(fleet.node("node-1"))
    await fleet.start(honest)
    fleet.follower.set([honest.member, replace(honest.member, name="node-2", address=address)])
    await until(lambda: "a node does not report" in caplog.messages)
    record = next(record for record in caplog.records if record.message == "a node does not report")
    assert record.__dict__["cause"].startswith("Node 'node-2' has the address 'https://")
    assert not fleet.follower._tasks["node-2", address].done(), "it is tried again"
    assert (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code == 200


async def test_an_unexpected_fault_of_a_report_does_not_end_the_following(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [TypeError("a fault of the reader")]
    take = fleet.names.take

    def take_or_fail(node: str, data: bytes) -> bool:
        if faults:
            raise faults.pop()
        return take(node, data)

    monkeypatch.setattr(fleet.names, "take", take_or_fail)
    await fleet.start(scripted(fleet.node("node-1")))
    assert "a node's reports cannot be read" in caplog.messages
    assert (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code == 200


@pytest.mark.parametrize("status", [b"099", b"600", b"999", b"101"])
async def test_what_is_no_status_of_an_answer_is_retried_at_another_node(fleet: Fleet, status: bytes) -> None:
    honest = scripted(fleet.node("node-1"))
    await fleet.start(honest)
    async with Liar(fleet, honest, b"HTTP/1.1 %b No\r\ncontent-length: 0\r\n\r\n" % status) as liar:
        while not liar.requests:
            answer = await fleet.client.post("/v1/embeddings", json=EMBED)
            assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1"), answer.text


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 201 Created\r\ncontent-length: 50\r\n\r\n", "broke off in the middle of its answer"),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 50\r\n\r\n{", "broke off in the middle of its answer"),
        (b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{", "broke off in the middle of its answer"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: tls\r\nconnection: upgrade\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 999 No\r\ncontent-length: 0\r\n\r\n", "cannot be reached"),
    ],
)
async def test_a_change_whose_answer_is_cut_is_an_error(fleet: Fleet, answer: bytes, message: str) -> None:
    honest = scripted(fleet.node("node-1"))
    await fleet.start(honest)
    honest.is_draining = True  # changes go to the other one
    async with Liar(fleet, honest, answer):
        await until(lambda: (stored := fleet.reports.get("node-1")) is not None and stored.report.draining)
        changed: httpx.Response = await fleet.client.post("/v1/models", json={"id": "x"})
    assert (changed.status_code, changed.json()["error"]["code"]) == (503, "node_failed"), changed.text
    assert message in changed.json()["error"]["message"]


class SlowNode:
    """Stands for `PeerClient`: a node whose reports do not arrive in time."""

    def __init__(self) -> None:
        self.tries, self.sends_tokens, self.reports_come = 0, True, asyncio.Event()

    @asynccontextmanager
    async def follow(self, node: str, address: str, path: str, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        self.tries += 1
        if not self.reports_come.is_set():
            raise NodeFailed("The node is silent.")
        yield self._reports()

    async def _reports(self) -> AsyncIterator[bytes]:
        yield b"event: report\ndata: {}\n\n"
        while self.reports_come.is_set():
            await asyncio.sleep(0.01)
        raise NodeFailed("The node is silent.")

    def hears(self, node: str, seconds: float) -> bool:
        return self.sends_tokens


@pytest.fixture
async def slow(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SlowNode, list[str], Follower]]:
    """A node, the nodes whose requests were ended, and what follows it."""
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    node, ended = SlowNode(), list[str]()
    follower = Follower("front-1", cast(Any, node), ReportTable(), fleet.names, ended.append)
    follower.set([Member("node-1", 1, "node", "https://127.0.0.1:8443", "1.0", False)])
    try:
        yield node, ended, follower
    finally:
        await follower.close()


Slow = tuple[SlowNode, list[str], Follower]


async def test_requests_of_a_node_that_does_not_report_end_once_it_sends_nothing_else_either(slow: Slow) -> None:
    node, ended, follower = slow
    await until(lambda: node.tries > 3)
    assert not ended, "it sends tokens"
    follower.set([])  # its lease has ended, because it is slow there too
    assert not ended
    node.sends_tokens = False
    await until(lambda: ended)
    tries = node.tries
    await until(lambda: node.tries > tries + 3)
    assert ended == ["node-1"]


async def test_a_node_that_reports_again_keeps_its_requests(slow: Slow) -> None:
    node, ended, _ = slow
    await until(lambda: node.tries > 1)
    node.reports_come.set()
    await until(lambda: "end-node-1" not in {task.get_name() for task in asyncio.all_tasks()})
    node.sends_tokens = False  # all its requests wait for their first tokens
    await asyncio.sleep(0.1)
    assert not ended
    node.reports_come.clear()
    await until(lambda: ended)


async def test_a_front_knows_whether_a_node_sends_tokens(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    link = node.fake.links["chat"]
    link.free = 2
    link.gate.clear()
    _, running = await begun(fleet)
    assert fleet.peer_client.hears("node-1", PATIENCE)
    assert not fleet.peer_client.hears("node-1", 0.0)
    link.gate.set()
    await running
    assert not fleet.peer_client.hears("node-1", PATIENCE), "nothing is running"


async def test_a_node_that_stops_sends_its_names_to_no_server_again(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "roundhouse.fleet")
    node, opened_again = scripted(fleet.node("node-1")), 0
    await fleet.start(node)
    events = node.fleet.events

    async def count() -> AsyncIterator[tuple[str, bytes]]:
        nonlocal opened_again
        opened_again += 1
        async for event in events():
            yield event

    node.fleet.events = count
    node.fleet.takes_requests = False
    await until(lambda: opened_again >= 3)
    assert fleet.reports.get("node-1") is None
    assert not [one for one in caplog.records if one.getMessage() == "a node reports again"]


async def test_a_node_with_many_models_answers_for_those_in_memory(fleet: Fleet) -> None:
    recipes = [recipe(f"model-{number}", "embed") for number in range(2 * MAX_REPLICAS)]
    node = fleet.node("node-1", recipes=recipes)
    for entry in node.fake.entries.values():
        entry.state = ModelState.FAILED
    node.fake.entries[recipes[-1].id].state = ModelState.READY
    await fleet.start(node)
    assert len(fleet.names.models) == len(recipes)
    stored = fleet.reports.get("node-1")
    assert stored is not None
    assert (len(stored.report.replicas), stored.report.replicas[0].model) == (MAX_REPLICAS, recipes[-1].id)
