"""`webhooks`, `batch deliveries` and `batch redeliver`."""

import json
from typing import Any

from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer

WEBHOOK: dict[str, Any] = {
    "id": "webhook_1", "object": "webhook_endpoint", "created_at": 1, "updated_at": 1, "name": "batches",
    "url": "https://a.example/x", "event_types": ["batch.completed"], "signing_secret_hint": "whsec_…abcd",
}  # fmt: skip
DELIVERY: dict[str, Any] = {
    "id": "evt_1", "object": "delivery", "event_type": "batch.completed", "url": "https://a.example/x",
    "state": "dead", "attempts": 30, "status_code": None, "error": "It cannot be reached.", "created_at": 1,
    "next_attempt_at": None, "ended_at": 2,
}  # fmt: skip
PATH = "/v1/webhook_endpoints"


def body(server: FakeServer) -> Any:
    return json.loads(server.received[-1].body)


def test_webhooks_are_created_listed_and_removed(server: FakeServer, run: Run) -> None:
    with_secret = {**WEBHOOK, "signing_secret": "whsec_new"}
    server.on("POST", PATH, Answer(with_secret))
    assert "whsec_new" in run("webhooks", "create", "https://a.example/x", "--event", "batch.completed").stdout
    assert body(server) == {"url": "https://a.example/x", "name": "batches", "event_types": ["batch.completed"]}
    run("webhooks", "create", "https://a.example/x")
    assert len(body(server)["event_types"]) == 4
    server.on("GET", PATH, Answer({"object": "list", "data": [WEBHOOK], "has_more": False}))
    assert "https://a.example/x" in run("webhooks", "list").stdout
    server.on("POST", f"{PATH}/webhook_1/rotate_secret", Answer(with_secret))
    assert json.loads(run("webhooks", "rotate", "webhook_1", "--json").stdout) == with_secret
    assert body(server) == {"keep_old_secret_active_for_24_hours": True}
    run("webhooks", "rotate", "webhook_1", "--no-keep-old")
    assert body(server) == {"keep_old_secret_active_for_24_hours": False}
    result = {"object": "webhook_endpoint.test", "event_type": "batch.failed", "status_code": 204, "success": True}
    server.on("POST", f"{PATH}/webhook_1/test", Answer(result))
    assert "status 204" in run("webhooks", "test", "webhook_1", "--event", "batch.failed").stdout
    server.on("DELETE", f"{PATH}/webhook_1", Answer({"id": "webhook_1", "deleted": True}))
    assert run("webhooks", "delete", "webhook_1").stdout == "webhook_1: deleted\n"


def test_the_secret_of_callbacks_is_printed_and_rotated(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/callback_secret", Answer({"signing_secret": "whsec_1"}))
    assert run("webhooks", "secret").stdout == "whsec_1\n"
    server.on("POST", "/v1/callback_secret/rotate", Answer({"signing_secret": "whsec_2"}))
    assert run("webhooks", "secret", "--rotate").stdout == "whsec_2\n"
    assert body(server) == {"keep_old_secret_active_for_24_hours": True}
    for words in (("secret",), ("secret", "--rotate"), ("rotate", "webhook_1")):
        server.on("POST", f"{PATH}/webhook_1/rotate_secret", Answer({**WEBHOOK, "signing_secret": "whsec_3"}))
        run("webhooks", *words, "--team", "search")
        assert server.received[-1].query == "team_id=search"


def test_deliveries_are_listed_and_repeated(server: FakeServer, run: Run) -> None:
    listed = {"object": "list", "data": [DELIVERY]}
    server.on("GET", "/v1/batches/batch_1/deliveries", Answer(listed))
    text = run("batch", "deliveries", "batch_1").stdout
    assert "dead" in text
    assert "It cannot be reached." in text
    server.on("POST", "/v1/batches/batch_1/redeliver", Answer(listed))
    assert json.loads(run("batch", "redeliver", "batch_1", "--json").stdout) == listed
