"""Batch lines at providers: a bounded number at a time, or none."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batches.records import LineCounts
from batches.work import ends, worker
from registry.errors import ProviderWithoutBatches, QueueFull
from registry.recipes.provider import Provider
from routing.providers.upstream import Upstream
from tests.eventually import PATIENCE
from tests.fakes import traces
from tests.fakes.provider import GATE, Play, ProviderFake, provider_fake
from tests.unit.http.batches.bench import CALLER, Bench, body
from tests.unit.providers.rig import KEY, provider


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "REFUSED_PAUSE", 0.01)
    monkeypatch.setattr(ends, "LONGEST_REFUSED", 0.01)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.05)
    monkeypatch.setenv("TEST_PROVIDER_KEY", KEY)


def gated() -> Play:
    play = traces.chat("big")
    return Play([GATE, *play.parts])


@asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[tuple[Bench, ProviderFake]]:
    async with provider_fake(lambda _: gated()) as fake:
        bench = Bench(folder, providers=[provider(fake, **more)])
        await bench.open()
        try:
            yield bench, fake
        finally:
            fake.gate.set()
            await bench.close()


async def arrivals(fake: ProviderFake, number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(fake.seen) < number:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("most", [1, 3])
async def test_a_providers_lines_are_bounded(tmp_path: Path, most: int) -> None:
    async with opened(tmp_path, batch_connections=most) as (bench, fake):
        await bench.create([body(f"t{number}", "there/big") for number in range(8)])
        await arrivals(fake, most)
        bench.worker.wake()
        await asyncio.sleep(0.2)  # no more arrive
        assert (len(fake.seen), bench.worker.running) == (most, most)
        upstream = bench.gateway.providers.upstreams["there"]
        assert (upstream.running, upstream.lines) == (most, most)
        fake.gate.set()
        assert (await bench.until_final()).counts == LineCounts(8, 8)
        assert (upstream.running, upstream.lines) == (0, 0)
        assert len(fake.seen) == 8


async def test_four_lines_run_by_default(tmp_path: Path) -> None:
    async with opened(tmp_path) as (bench, _):
        room = bench.gateway.line_rooms.room("there/big", CALLER)
        assert (room.key, room.traffic.most) == ("there/", 4)
        unknown = bench.gateway.line_rooms.room("elsewhere/big", CALLER)
        assert (unknown.key, unknown.traffic.most) == ("", 4)


async def test_a_provider_may_accept_no_lines(tmp_path: Path) -> None:
    async with opened(tmp_path, batches=False) as (bench, fake):
        fake.gate.set()
        await bench.create([body("a", "there/big"), body("b", "chat")])
        assert (await bench.until_final()).counts == LineCounts(2, 1, 1)
        [refused, _] = await bench.results()
        error = json.loads(refused.result or b"")["error"]
        assert (refused.status, refused.code, error["code"]) == (400, *["provider_without_batches"] * 2)
        assert "Provider 'there'" in error["message"]
        assert fake.seen == []


def upstream(**more: Any) -> Upstream:
    given = {
        "id": "there", "version": 1, "protocol": "openai", "base_url": "https://a.example/v1",
        "models": [{"name": "big"}], **more,
    }  # fmt: skip
    return Upstream(Provider.model_validate(given))


def test_the_bound_holds_for_lines_that_routers_send() -> None:
    """They are counted in another room than the provider's own."""
    there = upstream(batch_connections=1)
    there.enter(first=True, is_line=True)
    with pytest.raises(QueueFull) as busy:
        there.enter(first=True, is_line=True)
    assert busy.value.code == "provider_busy"
    there.enter(first=True)
    there.leave()
    there.leave(is_line=True)
    there.enter(first=True, is_line=True)
    closed = upstream(batches=False)
    closed.enter(first=True)
    with pytest.raises(ProviderWithoutBatches):
        closed.enter(first=True, is_line=True)
