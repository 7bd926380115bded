"""Adapters in /metrics, where nothing of a removed one stays."""

from pathlib import Path

import httpx
import pytest

from registry.catalog import Catalog
from registry.recipes.definition import Recipe
from registry.records import Adapter, AdapterKey, Probe, Version
from runtime.gateway.local.adapters import LocalAdapterRegistry
from runtime.gateway.views import overview
from runtime.scheduling.placement import AdapterStatus
from runtime.scheduling.queue import ModelQueue
from tests.unit.http.fakes import FakeGateway, application

CHAT = {
    "id": "chat", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
    "memory": {"adapters": {"device": 2, "host": 4}},
}  # fmt: skip


def adapter(name: str, letter: str, probe: Probe | None = None) -> Adapter:
    key = AdapterKey("chat", name)
    version = Version(key, 1, "sha256:" + letter * 64, 0.0, 8, 100, "path", probe)
    return Adapter(key, 0.0, False, version, (version,))


@pytest.fixture
async def gateway(tmp_path: Path) -> FakeGateway:
    return FakeGateway(tmp_path, [Recipe.model_validate(CHAT)])


async def scrape(gateway: FakeGateway) -> str:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get("/metrics")).text


async def test_running_and_waiting_adapters_are_in_vllms_own_series(gateway: FakeGateway) -> None:
    found = [adapter("runs", "a"), adapter("waits", "b"), adapter("idle", "c")]
    gateway.names.everything = Catalog(gateway.recipes, found)
    policy = gateway.queues["chat"].policy
    policy.enqueue("1", found[0].current.digest, 0.0)
    policy.decide(0.0)
    policy.staged(found[0].current.digest)
    policy.decide(0.0)
    policy.placed(found[0].current.digest, 0.0)
    assert policy.decide(0.0).start == ("1",)
    policy.enqueue("2", found[1].current.digest, 0.0)
    text = await scrape(gateway)
    assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="runs",waiting_lora_adapters="waits"} ' in text
    assert 'roundhouse_adapter_tier{adapter="runs",model="chat",tier="device"} 1.0' in text
    assert 'roundhouse_adapter_tier{adapter="waits",model="chat",tier="disk"} 1.0' in text
    assert 'roundhouse_adapter_misses{adapter="runs",model="chat"} 1.0' in text
    assert 'roundhouse_adapter_waiting{adapter="waits",model="chat"} 1.0' in text


async def test_bases_with_equal_places_have_vllms_series_once(tmp_path: Path) -> None:
    """Prometheus counts a repeated series as an error of the scrape."""
    gateway = FakeGateway(tmp_path, [Recipe.model_validate({**CHAT, "id": name}) for name in ("chat", "other")])
    samples = [line for line in (await scrape(gateway)).splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert len(samples) == 1


async def test_metrics_look_at_each_adapter_once_and_not_at_each_version(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 2,000 adapters of 20 versions, each reading stopped all streams for a tenth of a second."""
    digests = [f"sha256:{number:064x}" for number in range(20)]
    key = AdapterKey("chat", "old")
    versions = tuple(Version(key, n, digest, 0.0, 8, 100, "path", None) for n, digest in enumerate(digests, 1))
    gateway.names.everything = Catalog(gateway.recipes, [Adapter(key, 0.0, False, versions[-1], versions)])
    queue = gateway.queues["chat"]
    queue.policy.enqueue("1", digests[0], 0.0)
    known, calls = ModelQueue.adapter_status, list[str]()

    def counted(queue: ModelQueue, digest: str) -> AdapterStatus:
        calls.append(digest)
        return known(queue, digest)

    monkeypatch.setattr(ModelQueue, "adapter_status", counted)
    assert 'running_lora_adapters="",waiting_lora_adapters="old"' in await scrape(gateway)
    assert calls == [digests[-1]]


async def test_a_removed_adapter_leaves_no_series(gateway: FakeGateway) -> None:
    gateway.names.everything = Catalog(gateway.recipes, [adapter("gone", "a"), adapter("stays", "b")])
    for name in ("gone", "stays"):
        gateway.metrics.adapter_requests.labels("chat", name).inc()
    assert 'adapter="gone"' in await scrape(gateway)
    gateway.names.everything = Catalog(gateway.recipes, [adapter("stays", "b")])
    text = await scrape(gateway)
    assert 'adapter="gone"' not in text
    assert 'roundhouse_adapter_requests_total{adapter="stays",model="chat"} 1.0' in text


def test_a_swap_reports_the_names_of_both_adapters(gateway: FakeGateway) -> None:
    gateway.names.everything = Catalog(gateway.recipes, [adapter("x", "a"), adapter("y", "b")])
    console = gateway.gateway.services.console
    registry = LocalAdapterRegistry(gateway.names, gateway.service, gateway.metrics, console, "chat")
    x, y = ("sha256:" + letter * 64 for letter in "ab")
    registry.swapped(x, None, 0.002, 0.001)
    registry.swapped(y, x, 0.002, 0.001)
    second, first = console.decisions.last(2)
    assert (first.subject, first.words, first.object) == ("x", "comes into a free place", "")
    assert (second.subject, second.words, second.object) == ("y", "takes the place of", "x")
    assert "staged in 2.0 ms, placed in 1.0 ms" in second.more


def test_probes_of_a_digest_count_for_all_its_versions(gateway: FakeGateway) -> None:
    first, second = Probe("a", "b"), Probe("c", "d")
    gateway.names.everything = Catalog(
        gateway.recipes, [adapter("x", "a", first), adapter("y", "a", second), adapter("z", "b")]
    )
    registry = LocalAdapterRegistry(
        gateway.names, gateway.service, gateway.metrics, gateway.gateway.services.console, "chat"
    )
    assert set(registry.probes("sha256:" + "a" * 64)) == {first, second}
    assert list(registry.probes("sha256:" + "b" * 64)) == [None]
    gateway.names.everything = Catalog(gateway.recipes, [adapter("x", "a")])
    assert list(registry.probes("sha256:" + "a" * 64)) == [None]
    assert list(registry.probes("sha256:" + "b" * 64)) == []


async def test_a_device_that_is_lost_has_no_memory_in_use(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for used, busy in ((7, 0.5), (None, None)):
        monkeypatch.setattr(overview, "used_of", lambda *_, at=(used, busy): at)
        text = await scrape(gateway)
        assert ("roundhouse_device_memory_used_bytes{" in text) == (used is not None)
        assert ("roundhouse_device_utilization_ratio{" in text) == (busy is not None)
        assert "roundhouse_device_memory_total_bytes{" in text
