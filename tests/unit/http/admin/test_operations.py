"""Headers of every answer, health, and what metrics never contain."""

from typing import Any

import httpx
import pytest

from registry.storage.reserve import DiskReserve
from runtime.gateway.core import Phase
from tenants.ledger.ledger import Ledger
from tests.unit.http.fakes import FakeGateway, Wire


@pytest.mark.parametrize("path", ["/health/live", "/v1/models", "/nowhere", "/v1/embeddings"])
async def test_a_clients_valid_request_id_is_returned(client: httpx.AsyncClient, path: str) -> None:
    for sane in ("mine-1", "a/b:c.d_e", "x" * 128):
        assert (await client.get(path, headers={"X-Request-Id": sane})).headers["x-request-id"] == sane


@pytest.mark.parametrize("odd", ["", "x" * 129, "two words", "<b>", "a\n", "a\r\nSet-Cookie: x", "ü"])
async def test_any_other_request_id_is_replaced(client: httpx.AsyncClient, odd: str) -> None:
    wire = Wire(client._transport.app, "/health/live", [b""])  # type: ignore[attr-defined]
    wire.scope["method"] = "GET"
    wire.scope["headers"] = [(b"x-request-id", odd.encode("latin-1"))]
    await wire.run()
    [number] = [value for name, value in wire.sent[0]["headers"] if name == b"x-request-id"]
    assert number.startswith(b"req-")


async def test_a_405_lists_all_methods_of_its_path(client: httpx.AsyncClient) -> None:
    """For `/v1/models` it used to list only POST."""
    for method, status in (("OPTIONS", 204), ("PUT", 405)):
        answer = await client.request(method, "/v1/models")
        assert answer.status_code == status
        assert {"GET", "HEAD", "POST", "OPTIONS"} == set(answer.headers["allow"].split(", "))


async def test_ready_only_between_start_and_stop(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.gateway.services.adapters._faults["chat"] = {"mine": "it does not fit"}
    phases: list[tuple[Phase, int, dict[str, Any]]] = [
        ("starting", 503, {"status": "starting"}),
        ("ready", 200, {"status": "ready", "faults": {"chat:mine": "it does not fit"}}),
        ("stopping", 503, {"status": "stopping"}),
    ]
    for phase, status, body in phases:
        gateway.gateway.phase = phase
        answer = await client.get("/health/ready")
        assert (answer.status_code, answer.json()) == (status, body)
        assert ("retry-after" in answer.headers) is (status == 503)
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    ("short", "failing", "status", "body"),
    [
        (False, False, 200, {"status": "ready", "faults": {}}),
        (True, False, 200, {"status": "degraded", "faults": {}, "degraded": ["storage_full"]}),
        (False, True, 503, {"status": "degraded", "faults": {}, "degraded": ["ledger_unavailable"]}),
        (True, True, 503, {"status": "degraded", "faults": {}, "degraded": ["storage_full", "ledger_unavailable"]}),
    ],
)
async def test_a_full_disk_and_a_failing_ledger_are_reported(
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    gateway: FakeGateway,
    short: bool,
    failing: bool,
    status: int,
    body: dict[str, Any],
) -> None:
    gateway.gateway.phase = "ready"
    monkeypatch.setattr(DiskReserve, "is_short", property(lambda _: short))
    monkeypatch.setattr(Ledger, "is_failing", property(lambda _: failing))
    answer = await client.get("/health/ready")
    assert (answer.status_code, answer.json()) == (status, body)
    assert answer.headers.get("retry-after") == ("5" if failing else None)
    assert (await client.get("/v1/status")).json()["degraded"] == body.get("degraded", [])
    series = dict(line.rsplit(" ", 1) for line in (await client.get("/metrics")).text.splitlines())
    reported = {fault: series[f'roundhouse_degraded{{fault="{fault}"}}'] for fault in gateway.gateway.faults}
    assert [fault for fault, value in reported.items() if float(value)] == body.get("degraded", [])


async def test_a_lost_device_is_reported_and_the_others_serve(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.gateway.phase = "ready"
    gateway.gateway.services.overview.lost_devices["cuda:1"] = "GPU is lost"  # type: ignore[index]
    answer = await client.get("/health/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "degraded", "faults": {}, "degraded": ["device_lost"]}


async def test_no_label_comes_from_a_request(client: httpx.AsyncClient) -> None:
    for path, body in (
        ("/v1/chat/completions", {"model": "chat:made-up", "messages": []}),
        ("/v1/embeddings", {"model": "made-up", "input": "made-up"}),
        ("/v1/made-up", {}),
        ("/v1/models/made-up/load", {}),
    ):
        assert (await client.post(path, json=body)).status_code == 404
    found = await client.get("/metrics")
    assert found.status_code == 200
    assert "roundhouse_requests_total" in found.text
    assert "made-up" not in found.text
