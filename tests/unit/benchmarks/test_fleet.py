"""The benchmark of a fleet: what its parts count, and what HAProxy says in a front's place."""

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
from benchmarks.load.client import connect
from benchmarks.load.client_cost import _CHUNK as CHUNK
from runtime.gateway.peers.hop import decode

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def bench(folder: Path) -> Bench:
    return Bench("fleet", RunSettings(True, True, True, 0, folder))


async def paced(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Three tokens, and the end."""
    await reader.readuntil(b"}]")
    writer.write(HEAD)
    for _ in range(3):
        writer.write(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(END)
    writer.close()


async def test_a_crowd_counts_its_tokens_and_what_is_lost() -> None:
    closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    server = await asyncio.start_server(paced, "127.0.0.1", 0)
    ports = [one.sockets[0].getsockname()[1] for one in (server, server, closing)]
    servers: Any = [SimpleNamespace(port=port) for port in ports]
    async with closing, server, Crowd(servers, ["chat"], 9, 10, 0.1) as crowd:
        while crowd.open:
            await asyncio.sleep(0.01)
        assert crowd.events == 6 * 4
    assert (len(crowd.cell.replies), len(crowd.cell.good)) == (9, 6)


async def test_a_connection_shows_the_answer_that_comes() -> None:
    async with await asyncio.start_server(paced, "127.0.0.1", 0) as server:
        connection = await connect(server.sockets[0].getsockname()[1])
        assert connection.reply is None
        await connection.ask(b"[{}]", 60)
        assert connection.reply is None


def test_haproxy_says_what_a_front_says(tmp_path: Path) -> None:
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


def test_choices_and_reports_are_measured() -> None:
    found = policies.measure(50, 1)
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
    monkeypatch.delenv("FLEET_BEFORE", raising=False)
    one = bench(tmp_path)
    await run.run(one)
    assert len(begun) == sum(one.failures.values()) == 5
    assert all(bar.met is None for bar in one.bars)
