"""How a front handles a node's faulty reports."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fleet.reports import encode
from tests.eventually import PATIENCE
from tests.unit.http.hops.rig import Fleet, opened
from tests.unit.http.hops.test_front import EMBED, scripted, until


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
