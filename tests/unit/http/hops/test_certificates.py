"""With a wrong certificate the connection is closed, and the logs name the cause."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from fleet import certificates, tls
from fleet.certificates import AUTHORITY, SERVER, issue, make_authority
from fleet.tls import FleetTls
from registry.errors import NodeFailed
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.following import PATH
from tests.eventually import PATIENCE
from tests.unit.http.hops.rig import Fleet, opened
from tests.unit.http.hops.test_front import EMBED, scripted, until


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path) as fleet:
        yield fleet


@pytest.mark.parametrize("wrong", ["foreign", "expired", "early", "mismatched"])
async def test_a_certificate_that_is_wrong_is_named_in_the_logs_of_both(
    fleet: Fleet, wrong: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.start(node := scripted(fleet.node("node-1")))
    authority, folder = fleet.authority, fleet.folder / "front-2"
    if wrong == "foreign":
        authority = fleet.folder / "others"
        make_authority(authority)
    if wrong == "early":
        monkeypatch.setattr(certificates, "SLACK", timedelta(days=-1))
    issue(authority, "front-2", folder, days=0 if wrong == "expired" else 90)
    identity = FleetTls(folder)
    identity.client.load_verify_locations(
        fleet.authority / AUTHORITY
    )  # a foreign server that accepts this fleet's certificates
    client = PeerClient(identity)
    try:
        name = "node-2" if wrong == "mismatched" else "node-1"
        with caplog.at_level(logging.WARNING, "roundhouse.fleet"), pytest.raises(NodeFailed):
            async with client.follow(name, node.address, PATH, 5.0):
                pass
        await until(lambda: len(caplog.records) > 1)
    finally:
        await client.close()
    causes = {record.message: vars(record)["cause"] for record in caplog.records}
    assert set(causes) == {"a connection to the fleet's port was refused", "a connection to a node broke"}
    assert all("certificate" in cause or "alert" in cause for cause in causes.values()), causes


async def test_clients_that_never_finish_their_handshake_leave_descriptors_for_others(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "most_handshakes", lambda: 3)
    caplog.set_level(logging.WARNING, "roundhouse.fleet")
    await fleet.start(node := scripted(fleet.node("node-1")))
    port = int(node.address.rpartition(":")[2])
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b"", "closed at once"
    writer.close()
    assert [vars(record)["cause"] for record in caplog.records] == ["too many connections wait for their handshake"]
    for _, silent_writer in silent:
        silent_writer.close()
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.0)

    async def answer() -> int:
        return (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code

    async with asyncio.timeout(PATIENCE):
        while await answer() != 200:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("wrong", "cause"), [("none", "peer did not return a certificate"), ("TLS 1.2", "unsupported protocol")]
)
async def test_a_client_that_is_no_server_of_the_fleet_is_closed_and_named(
    fleet: Fleet, wrong: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.start(node := scripted(fleet.node("node-1")))
    caplog.set_level(logging.WARNING, "roundhouse.fleet")
    context = ssl.create_default_context(cafile=str(fleet.authority / AUTHORITY))
    if wrong == "TLS 1.2":
        issue(fleet.authority, "front-2", fleet.folder / "front-2")
        context.load_cert_chain(fleet.folder / "front-2" / SERVER)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    port = int(node.address.rpartition(":")[2])
    with suppress(OSError):  # an alert in the handshake, or after it, because with TLS 1.3 the client finishes first
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="node-1")
        writer.write(b"GET /fleet/v1/reports HTTP/1.1\r\nHost: node-1\r\n\r\n")
        assert await reader.read() == b""
    await until(lambda: caplog.records)
    assert [vars(record)["cause"] for record in caplog.records] == [cause]
