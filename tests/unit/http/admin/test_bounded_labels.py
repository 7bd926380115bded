"""The metrics are bounded, whatever clients send, register and are called."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from models.messages import Usage
from registry.catalog import Catalog
from registry.records import Version
from runtime.gateway.context import RequestContext
from runtime.gateway.metrics import Metrics
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.sinks.operators import AGE, CODES, BusiestLabels, LimitMetrics, RequestMetrics, TeamMetrics
from runtime.gateway.target import Target
from runtime.gateway.views.engine_series import add_families
from tenants.caller import EVERYBODY
from tenants.limits.records import Kind, Limit
from tests.unit.http.admin.test_adapter_metrics import adapter
from tests.unit.http.fakes import FakeGateway, application

SECONDS = {"receive": 0.0, "total": 2.0, "queue": 0.5, "load": 0.1, "swap": 0.1, "first": 1.0, "device": 1.0}
TARGET = Target(
    "asked", "chat", "rev", "one", Version(adapter("one", "a").key, 1, "sha256:" + "a" * 64, 0.0, 8, 1, "p")
)


def record(number: int, code: str | None = None, status: int = 200) -> RequestRecord:
    """Return a record with its own names."""
    context = RequestContext(f"r-{number}", caller=replace(EVERYBODY, team=f"team-{number}"))
    target = replace(TARGET, requested=f"asked-{number}", adapter=f"adapter-{number}")
    end = End.DONE if code is None else End.REFUSED
    return RequestRecord(context, "/v1/chat/completions", target, end, status, code, Usage(3, 4, 1), SECONDS)


def names_of(metrics: Metrics, label: str) -> dict[str, int]:
    """Return the number of values of a label in each series."""
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if label in sample.labels:
                found.setdefault(family.name, set()).add(sample.labels[label])
    return {name: len(values) for name, values in found.items()}


def test_counts_after_a_model_was_removed_are_exported() -> None:
    metrics = Metrics()
    sink = RequestMetrics(metrics)
    for _ in range(2):
        sink.take(record(1))
        assert [s.value for s in metrics.requests.collect()[0].samples] == [1.0]
        metrics.forget("chat")
        assert metrics.requests.collect()[0].samples == []


@pytest.mark.long
def test_five_thousand_names_of_each_kind_are_bounded() -> None:
    metrics = Metrics()
    sinks = (RequestMetrics(metrics), TeamMetrics(metrics))
    limits = LimitMetrics(metrics)
    for number in range(5000):
        for sink in sinks:
            sink.take(record(number))
            sink.take(record(number, f"code-{number}"))
            sink.take(record(number, f"code-{number}", 429))
        limits.count(Limit("l", "team", f"team-{number}", Kind.REQUESTS, 1), "refused")
    assert set(names_of(metrics, "adapter").values()) == {101}
    assert set(names_of(metrics, "team").values()) == {201}
    assert names_of(metrics, "owner") == {"roundhouse_limited_requests": 201}
    assert names_of(metrics, "kind")["roundhouse_errors"] == CODES + 1
    assert set(names_of(metrics, "model").values()) == {1}
    total = sum(s.value for s in next(iter(metrics.adapter_requests.collect())).samples)
    assert total == 15_000, "each request is counted once"
    series = sum(len(family.samples) for family in metrics.registry.collect())
    assert names_of(metrics, "outcome") == {"roundhouse_requests": CODES + 1, "roundhouse_team_requests": 3}
    assert series < 7000


def test_a_name_that_becomes_busy_replaces_the_least_busy() -> None:
    busiest = BusiestLabels[str](2)
    assert [busiest.count(name) for name in ("a", "a", "a", "b", "b")] == [None] * 5
    assert [busiest.count("c") for _ in range(5)] == [None, None, None, None, "b"]
    assert [busiest.has(name) for name in "abc"] == [True, False, True]
    for number in range(3 * AGE):
        busiest.count(f"once-{number}")
    assert len(busiest._counts) <= 2 * AGE


async def scrape(gateway: FakeGateway, accept: str = "") -> httpx.Response:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get("/metrics", headers={"accept": accept})


async def test_five_hundred_registered_adapters_are_bounded(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path)
    found = [adapter(f"a-{number}", format(number % 16, "x")) for number in range(500)]
    gateway.names.everything = Catalog(gateway.recipes, found)
    text = (await scrape(gateway)).text
    assert text.count("roundhouse_adapter_bytes{") == 101
    assert 'roundhouse_adapter_bytes{adapter="other",model="chat"} 40000.0' in text
    assert text.count("roundhouse_adapter_tier{") == 300


OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def test_a_teams_tokens_include_the_embedding_that_chose_its_target() -> None:
    """The ledger charges them, too."""
    metrics, one = Metrics(), record(0)
    TeamMetrics(metrics).take(replace(one, routing_tokens=5))
    [family] = metrics.team_tokens.collect()
    counts = {s.labels["kind"]: s.value for s in family.samples if s.name.endswith("_total")}
    assert counts["prompt"] == one.usage.prompt_tokens + 5


async def test_buckets_have_exemplars_in_open_metrics(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path)
    RequestMetrics(gateway.metrics).take(record(7))
    answer = await scrape(gateway, OPEN)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    first = families["roundhouse_time_to_first_token_seconds"]
    exemplars = {sample.labels["le"]: sample.exemplar.labels for sample in first.samples if sample.exemplar}
    assert exemplars == {"1.0": {"request_id": "r-7"}}
    plain = await scrape(gateway)
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert " # {" not in plain.text
    assert plain.text.count("# EOF") == 0


def test_an_id_that_is_too_long_for_an_exemplar_is_left_out() -> None:
    metrics = Metrics()
    long = record(0)
    RequestMetrics(metrics).take(replace(long, context=replace(long.context, id="x" * 128)))
    [family] = metrics.first.collect()
    assert not any(sample.exemplar and sample.exemplar.labels for sample in family.samples)


def test_engines_text_becomes_open_metrics() -> None:
    text = (
        b"# HELP vllm:prompt_tokens_total Tokens.\n# TYPE vllm:prompt_tokens_total counter\n"
        b'vllm:prompt_tokens_total{model_name="m"} 3.0\n'
        b"# HELP vllm:iteration_tokens_total Sizes.\n# TYPE vllm:iteration_tokens_total histogram\n"
        b'vllm:iteration_tokens_total_bucket{le="+Inf"} 1.0\nvllm:iteration_tokens_total_count 1.0\n'
        b"vllm:iteration_tokens_total_sum 3.0\n"
    )
    whole = add_families(b"# EOF\n", text).decode()
    found = {family.name: family.type for family in text_string_to_metric_families(whole)}
    assert found == {"vllm:prompt_tokens": "counter", "vllm:iteration_tokens_total": "histogram"}


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "application/openmetrics-text", "x;;,;=;version=x"])
async def test_any_accept_header_gets_metrics(tmp_path: Path, accept: str) -> None:
    assert (await scrape(FakeGateway(tmp_path), accept)).status_code == 200
