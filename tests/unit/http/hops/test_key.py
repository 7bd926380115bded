"""A fleet with a key instead of certificates, in which requests, reports and copies must be signed."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fleet.signatures import HEADER as SIGNATURE
from fleet.signatures import FleetKey, SignedRequest
from registry.base.session import MOST_INTERIM
from registry.errors import NodeFailed
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.following import PATH
from runtime.gateway.peers.hop import HEADER, Hop, encode
from tenants.caller import EVERYBODY, ServiceClass
from tests.eventually import PATIENCE
from tests.unit.http.hops.rig import Fleet, Node, opened
from tests.unit.http.hops.test_front import EMBED, scripted, until

KEY = b"the key of a fleet, 32 or longer"
HOP = encode(Hop(id="one", model="embed", revision="rev", requested="embed", service_class=ServiceClass.INTERACTIVE))
REQUEST = SignedRequest("node-1", "POST", "/v1/embeddings", HOP)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path, key=KEY) as fleet:
        yield fleet


@pytest.fixture
async def node(fleet: Fleet) -> Node:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)  # waits for its reports
    return node


async def post(node: Node, signature: str | None, path: str = REQUEST.path, context: str = HOP) -> httpx.Response:
    headers = {HEADER: context} if signature is None else {HEADER: context, SIGNATURE: signature}
    async with httpx.AsyncClient(base_url=node.address, trust_env=False) as client:
        return await client.post(path, json=EMBED, headers=headers)


async def test_a_front_with_the_key_passes_requests_on(fleet: Fleet, node: Node) -> None:
    forged = {SIGNATURE: "of a client"}
    answer = await fleet.client.post("/v1/embeddings?a=%20b", json=EMBED, headers=forged)
    assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1"), answer.text


async def test_a_signed_request_is_accepted_once(fleet: Fleet, node: Node) -> None:
    signature = FleetKey("front-1", KEY).sign(REQUEST)
    first = await post(node, signature)
    assert first.status_code == 200, first.text
    again = await post(node, signature)
    assert (again.status_code, again.json()["error"]["code"]) == (421, "misdirected_request")
    assert "was used before" in again.json()["error"]["message"]
    assert [record.context.id for record in node.fake.records.all] == ["one"]


@pytest.mark.parametrize(
    ("request_", "key", "clock"),
    [
        (REQUEST, KEY[::-1], 0.0),
        (REQUEST._replace(path="/v1/models"), KEY, 0.0),
        (REQUEST._replace(context="another"), KEY, 0.0),
        (REQUEST._replace(node="node-2"), KEY, 0.0),
        (REQUEST, KEY, -31.0),
        (None, KEY, 0.0),
    ],
    ids=["key", "path", "context", "node", "time", "none"],
)
async def test_requests_with_another_signature_are_refused(
    node: Node, request_: SignedRequest | None, key: bytes, clock: float, caplog: pytest.LogCaptureFixture
) -> None:
    signature = None if request_ is None else FleetKey("x", key, lambda: time.time() + clock).sign(request_)
    with caplog.at_level(logging.WARNING, "roundhouse.fleet"):
        answer = await post(node, signature)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "misdirected_request")
    assert "signature" in answer.json()["error"]["message"] or "not signed" in answer.json()["error"]["message"]
    assert [one.message for one in caplog.records] == ["a request to the fleet's port was refused"]
    assert node.fake.records.all == []


async def test_another_key_gets_no_reports_and_both_logs_name_the_cause(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = PeerClient(FleetKey("front-2", KEY[::-1]))
    try:
        with caplog.at_level(logging.WARNING, "roundhouse.fleet"), pytest.raises(NodeFailed, match="from another key"):
            async with stranger.follow("node-1", node.address, PATH, 5.0):
                pass
        assert "from another key" in vars(caplog.records[0])["cause"]
    finally:
        await stranger.close()


async def test_servers_with_a_key_and_with_certificates_cannot_connect(
    fleet: Fleet, node: Node, tmp_path: Path
) -> None:
    async with opened(tmp_path / "other") as other:
        with pytest.raises(NodeFailed, match="by a server with certificates"):
            async with other.peer_client.follow("node-1", node.address, PATH, 5.0):
                pass
    with pytest.raises(NodeFailed, match="by a server with a key"):
        async with fleet.peer_client.follow("node-1", "https://127.0.0.1:8443", PATH, 5.0):
            pass


async def test_a_fleet_without_key_and_certificates_stays_on_its_machine(tmp_path: Path) -> None:
    local = PeerClient(FleetKey("front-1", KEY, is_local=True))
    try:
        with pytest.raises(NodeFailed, match="neither certificates nor --fleet-key"):
            async with local.follow("node-1", "http://192.0.2.1:8443", PATH, 5.0):
                pass
        async with opened(tmp_path, key=KEY) as fleet:
            node = scripted(fleet.node("node-1"))
            await fleet.start(node)
            async with local.follow("node-1", node.address, PATH, 5.0) as events:
                assert await anext(events)
    finally:
        await local.close()


async def test_a_member_that_sends_informational_responses_without_end_is_left() -> None:
    """aiohttp alone would read any number, and block the event loop meanwhile."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * (MOST_INTERIM + 1))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    client = PeerClient(FleetKey("front-1", KEY, is_local=True))
    try:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(NodeFailed):
                async with client.follow("node-1", address, PATH, PATIENCE) as events:
                    await anext(events)
    finally:
        await client.close()


async def test_the_key_is_nobodys_certificate(fleet: Fleet, node: Node) -> None:
    service = fleet.front.gateway.services.fleet
    assert service is not None
    assert service.certificate_seconds is None
    view = service.view(EVERYBODY)
    assert view.certificate_ends == ""
    await until(lambda: fleet.reports.get("node-1") is not None)
