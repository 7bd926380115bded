"""GET /v1/signal, and the metrics with the same values."""

import asyncio
import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

from runtime.gateway.metrics import Metrics
from runtime.gateway.views.signal import export, kv_use_of, signal_of
from runtime.scheduling.fair import ArrivalRates
from tenants.caller import ServiceClass
from tests.unit.http.fakes import FakeGateway


def test_the_fullest_cache_counts(gateway: FakeGateway) -> None:
    entry = gateway.entries["chat"]
    text = "# HELP vllm:kv_cache_usage_perc x\n" + "".join(
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="chat"}} {use}\n'
        for engine, use in enumerate((0.5, 0.9))
    )
    assert kv_use_of({"chat": text}, entry) == 0.9
    assert kv_use_of({"chat": ""}, entry) is None


def test_a_model_without_a_cache_has_no_use_of_one(gateway: FakeGateway) -> None:
    metrics, entry = Metrics(), gateway.entries["chat"]
    for use in (0.9, None, 0.5):
        export(metrics, [signal_of(entry, use)])
        assert metrics.registry.get_sample_value("roundhouse_kv_cache_use_ratio", {"model": "chat"}) == use


async def test_a_signal_says_what_is_missing(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    queue = gateway.queues["embed"]
    queue._pace.ended(20.0, 1.0)
    for _ in range(queue.policy.max_requests):
        await queue.acquire(None)
    waiting = [asyncio.create_task(queue.acquire(None)) for _ in range(100)]
    await asyncio.sleep(0)
    try:
        everything = (await client.get("/v1/signal")).json()
        assert {one["model"] for one in everything["data"]} == set(gateway.entries)
        (found,) = (await client.get("/v1/signal", params={"model": "embed"})).json()["data"]
        assert found["replicas"] == 1
        assert found["waiting_work"] == 100.0
        assert found["replica_work_per_second"] == 0.05 * queue.policy.max_requests
        assert found["classes"]["interactive"]["goal_seconds"] == 2.0
        assert found["arriving_work_per_second"] > 0
        text = (await client.get("/metrics")).text
        (later,) = (await client.get("/v1/signal", params={"model": "embed"})).json()["data"]
    finally:
        for one in waiting:
            one.cancel()
    samples = {
        (sample.name, sample.labels.get("class", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model") == "embed"
    }
    # the rate of arrivals falls meanwhile
    assert found["wanted_replicas"] >= samples["roundhouse_wanted_replicas", ""] >= later["wanted_replicas"] > 1
    assert samples["roundhouse_waiting_work", ""] == found["waiting_work"]
    assert samples["roundhouse_replica_work_per_second", ""] == found["replica_work_per_second"]
    assert samples["roundhouse_lead_seconds", ""] == found["lead_seconds"]
    for service_class in ServiceClass:
        wait = found["classes"][service_class.label]
        assert samples["roundhouse_predicted_wait_seconds", service_class.label] == wait["predicted_wait_seconds"]
        assert samples["roundhouse_wait_goal_seconds", service_class.label] == wait["goal_seconds"]


async def test_a_model_that_is_idle_for_long_needs_one_replica(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    queue = gateway.queues["embed"]
    queue.arrivals = ArrivalRates(time.monotonic() - 3600.0)
    queue._pace.ended(20.0, 1.0)
    (found,) = (await client.get("/v1/signal", params={"model": "embed"})).json()["data"]
    assert (found["replicas"], found["wanted_replicas"]) == (1, 1)
    assert (await client.get("/metrics")).status_code == 200


async def test_a_signal_of_an_unknown_model_is_a_404(client: httpx.AsyncClient) -> None:
    for name in ("nothing", ""):
        answer = await client.get("/v1/signal", params={"model": name})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
