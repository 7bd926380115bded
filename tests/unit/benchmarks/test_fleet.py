"""The benchmark of a fleet: its counts, and answers from HAProxy in place of a front."""

import asyncio
import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from benchmarks.fleet import copies, names, policies, run, simulated
from benchmarks.fleet.crowds import Crowd
from benchmarks.fleet.servers import HaProxy, context_of
from benchmarks.harness import Bench, RunSettings
from benchmarks.load.client_cost import _CHUNK as CHUNK
from runtime.gateway.peers.hop import decode
from tests.eventually import PATIENCE

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def bench(folder: Path) -> Bench:
    return Bench("fleet", RunSettings(True, True, True, 0, folder))


async def paced(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send three tokens, and the end only while the client stays connected."""
    await reader.readuntil(b"}]")
    writer.write(HEAD)
    for _ in range(3):
        writer.write(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
        await writer.drain()
    await reader.read()
    writer.close()


async def test_a_crowd_counts_tokens_and_lost_answers(tmp_path: Path) -> None:
    closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    server = await asyncio.start_server(paced, "127.0.0.1", 0)
    ports = [one.sockets[0].getsockname()[1] for one in (server, server, closing)]
    servers: Any = [SimpleNamespace(port=port) for port in ports]
    crowd, one = Crowd(servers, ["chat"], 9, 10), bench(tmp_path)
    async with closing, server, asyncio.timeout(PATIENCE), crowd:
        while crowd.events < 18:
            await asyncio.sleep(0.01)
        assert (crowd.events, crowd.open) == (18, 6)
    assert (crowd.lost, len(crowd.replies)) == (3, 6)
    crowd.count(one, "here")
    assert (one.counts["here"], sum(one.failures.values())) == (9, 3)
    assert all(cause.startswith("here: lost: ") for cause in one.failures)


async def test_a_crowd_measures_the_streams_that_were_opened_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    full = await asyncio.start_server(silent, "127.0.0.1", 0)
    server = await asyncio.start_server(paced, "127.0.0.1", 0)
    servers: Any = [SimpleNamespace(port=one.sockets[0].getsockname()[1]) for one in (server, full)]
    crowd = Crowd(servers, ["chat"], 8, 10, opening=1.0)
    async with full, server, asyncio.timeout(PATIENCE), crowd:
        assert (crowd.opened, crowd.not_opened, crowd.open) == (4, 4, 4)
    assert (crowd.lost, len(crowd.replies)) == (0, 4)


def test_haproxy_answers_as_a_front_does(tmp_path: Path) -> None:
    context = context_of("chat", "rev")
    hop = decode(base64.b64encode(context.replace("%[uuid()]", "one").encode()))
    assert (hop.id, hop.model, hop.revision, hop.requested) == ("one", "chat", "rev", "chat")
    http = httpx.Client(
        base_url="http://test", transport=httpx.MockTransport(lambda _: httpx.Response(200, json={"revision": "rev"}))
    )
    node: Any = SimpleNamespace(name="node-1", model="chat", fleet_port=8443, http=http)
    proxy = HaProxy(node, tmp_path, tmp_path / "certificates")
    text = (tmp_path / "haproxy.cfg").read_text()
    assert f"'{context}'" in text
    assert f"bind 127.0.0.1:{proxy.port}\n" in text
    assert "ssl-min-ver TLSv1.3" in text
    assert "verify required verifyhost node-1" in text
    assert "http-no-delay" in text


def test_choices_and_reports_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "NODES", 50)
    found = policies.measure(50, 4)
    assert all(found[name] > 0 for name in ("choose", "core"))


async def test_a_part_that_ends_early_is_a_failure_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    async def part(_bench: Bench) -> None:
        begun.append(1)
        raise RuntimeError("broken")

    for module in (names, copies, policies, simulated):
        monkeypatch.setattr(module, "run", part)
    monkeypatch.setattr(run, "_servers", part)
    monkeypatch.setattr(run, "has_postgres", lambda: True)
    one = bench(tmp_path)
    await run.run(one)
    assert len(begun) == sum(one.failures.values()) == 5
    assert all(bar.met is None for bar in one.bars)
