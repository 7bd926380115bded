"""`client.webhooks` of OpenAI's SDK, callbacks of batches, and their deliveries, checked against the SDK's types."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.webhooks import (
    WebhookEndpoint,
    WebhookEndpointList,
    WebhookEndpointTestResult,
    WebhookEndpointWithSecret,
)

from batches.callbacks.deliverer import CallbackDeliverer
from batches.callbacks.records import EVENTS, DeliveryOutcome
from batches.callbacks.sender import CallbackSender
from batches.records import BatchState
from registry.names import DEFAULT_TEAM
from tests.eventually import PATIENCE
from tests.system.vendor.strict import faults
from tests.unit.batches.callbacks.receiver import Receiver
from tests.unit.http.batches.conftest import BODY, URL, BatchServer, answered, jsonl

NETWORKS = ("127.0.0.0/8",)
ALL: Any = list(EVENTS.values())


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BatchServer]:
    """A server that may call this machine."""
    made = BatchServer(tmp_path, callback_networks=NETWORKS)
    yield made
    await made.close()


async def create(served: BatchServer, url: str = "http://127.0.0.1:9/hook", events: Any = ALL) -> Any:
    return await served.client.webhooks.create(event_types=events, name="nightly", url=url)


async def test_webhooks_from_creation_to_deletion(inside: BatchServer) -> None:
    client = inside.client.webhooks
    made = await create(inside, events=["batch.completed", "batch.completed"])
    assert faults(WebhookEndpointWithSecret, inside.raw[-1]) == []
    assert made.signing_secret.startswith("whsec_")
    assert made.event_types == ["batch.completed"]
    again = await client.retrieve(made.id)
    assert faults(WebhookEndpoint, inside.raw[-1]) == []
    assert "signing_secret" not in inside.raw[-1]
    assert again.signing_secret_hint == f"whsec_…{made.signing_secret[-4:]}"
    changed = await client.update(made.id, name="daily", event_types=["batch.failed"])
    assert (changed.name, changed.event_types, changed.url) == ("daily", ["batch.failed"], made.url)
    rotated = await client.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    assert rotated.signing_secret != made.signing_secret
    others = [await create(inside) for _ in range(2)]
    page = await client.list(limit=2)
    assert faults(WebhookEndpointList, inside.raw[-1]) == []
    assert [one.id for one in page.data] == [others[1].id, others[0].id]
    assert [one.id async for one in client.list(limit=1)] == [others[1].id, others[0].id, made.id]
    gone = await client.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    for call in (client.retrieve, client.delete, client.rotate_secret, client.update):
        with pytest.raises(openai.NotFoundError) as missing:
            await call(made.id)
        assert missing.value.code == "webhook_not_found"
    assert (await client.event_types.list()).data == ALL


async def test_a_test_event_is_delivered_at_once(inside: BatchServer) -> None:
    async with Receiver(201, 500) as receiver:
        made = await create(inside, receiver.url)
        result = await inside.client.webhooks.test(made.id, event_type="batch.failed")
        assert faults(WebhookEndpointTestResult, inside.raw[-1]) == []
        assert (result.status_code, result.success, result.webhook_endpoint_id) == (201, True, made.id)
        assert (await inside.client.webhooks.test(made.id, event_type="batch.failed")).status_code == 500
    [one, _] = receiver.received
    event = inside.client.webhooks.unwrap(one.body, one.headers, secret=made.signing_secret)
    assert event.type == "batch.failed"
    with pytest.raises(openai.BadRequestError) as refused:
        await inside.client.webhooks.test(made.id, event_type="batch.failed")
    assert refused.value.code == "webhook_unreachable"


async def test_a_test_event_takes_the_turn_of_its_team(inside: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of one team's URLs, which may resolve slowly, do not delay another team's."""
    teams = []

    async def send(_: CallbackSender, *arguments: Any) -> DeliveryOutcome:
        teams.append(arguments[5])
        return DeliveryOutcome(200)

    monkeypatch.setattr(CallbackSender, "send", send)
    made = await create(inside)
    await inside.client.webhooks.test(made.id, event_type="batch.failed")
    assert teams == [DEFAULT_TEAM]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"event_types": ["response.completed"]}, "event_types.0"),
        ({"event_types": []}, "event_types"),
        ({"url": "http://example.com"}, "url"),
        ({"url": "https://127.0.0.1"}, "url"),
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"name": ""}, "name"),
        ({"secret": "whsec_mine"}, "secret"),
    ],
    ids=range(7),
)
async def test_faulty_webhooks_are_refused(served: BatchServer, body: dict[str, Any], param: str) -> None:
    given = {"event_types": ALL, "name": "x", "url": "https://93.184.216.34/"} | body
    answer = await served.http.post("/v1/webhook_endpoints", json=given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert served.ledger.database is None


async def test_the_url_of_a_change_is_checked_like_a_new_one(inside: BatchServer) -> None:
    made = await create(inside)
    for url in ("https://169.254.169.254/latest", "http://93.184.216.34/"):
        with pytest.raises(openai.BadRequestError) as refused:
            await inside.client.webhooks.update(made.id, url=url)
        assert (refused.value.code, refused.value.param) == ("callback_refused", "url")
    assert (await inside.client.webhooks.update(made.id, url="http://127.0.0.1:10/")).url == "http://127.0.0.1:10/"


async def test_test_events_at_once_are_bounded(inside: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver(200) as receiver:
        made = await create(inside, receiver.url)
        monkeypatch.setattr("batches.callbacks.service.TESTS", 1)
        for _ in range(2):  # one after the other
            assert (await inside.client.webhooks.test(made.id, event_type="batch.failed")).success
        monkeypatch.setattr("batches.callbacks.service.TESTS", 0)
        with pytest.raises(openai.RateLimitError, match="Several test events"):
            await inside.client.webhooks.test(made.id, event_type="batch.failed")


async def test_too_many_webhooks_are_refused(inside: BatchServer) -> None:
    for _ in range(10):
        await create(inside)
    with pytest.raises(openai.ConflictError) as refused:
        await create(inside)
    assert refused.value.code == "too_many_webhooks"


async def test_without_webhooks_there_is_no_secret_and_no_database(served: BatchServer) -> None:
    assert (await served.client.webhooks.list()).data == []
    secret = await served.http.get("/v1/callback_secret")
    assert (secret.status_code, secret.json()["error"]["code"]) == (404, "no_callback_secret")
    assert served.ledger.database is None


async def reach(served: BatchServer, id_: str, state: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            [delivery] = (await served.http.get(f"/v1/batches/{id_}/deliveries")).json()["data"]
            if delivery["state"] == state:
                return delivery
            await asyncio.sleep(0.01)


async def test_a_callback_is_delivered_and_redelivered(inside: BatchServer) -> None:
    async with Receiver(410, 200) as receiver:
        body = {"url": URL, "requests": [{"body": BODY}], "callback_url": receiver.url}
        answer = await inside.http.post("/v1/batch", json=body)
        assert answer.status_code == 200, answer.text
        id_ = answer.json()["batch_id"]
        batch = await inside.client.batches.retrieve(id_)
        assert inside.raw[-1]["roundhouse"]["callback_url"] == receiver.url
        secret = (await inside.http.get("/v1/callback_secret")).json()["signing_secret"]
        early = await inside.http.post(f"/v1/batches/{id_}/redeliver")
        assert (early.status_code, early.json()["error"]["code"]) == (409, "no_deliveries")
        assert early.headers["x-should-retry"] == "false"
        assert (await inside.http.get(f"/v1/batches/{id_}/deliveries")).json() == {"object": "list", "data": []}
        await inside.work(batch.id, answered)
        epochs = [epoch for epoch in range(1, 9) if await is_open(inside, epoch)]
        callbacks = inside.batches.callbacks
        deliverer = CallbackDeliverer(inside.batches.store, CallbackSender(callbacks.addresses), lambda: epochs[-1])
        callbacks.wake = deliverer.wake
        deliverer.start()
        try:
            dead = await reach(inside, id_, "dead")
            assert (dead["status_code"], dead["error"]) == (410, "It answered with status 410.")
            assert (dead["next_attempt_at"], dead["attempts"]) == (None, 1)
            again = await inside.http.post(f"/v1/batches/{id_}/redeliver")
            assert again.status_code == 200
            done = await reach(inside, id_, "delivered")
            assert (done["id"], done["error"], done["event_type"]) == (dead["id"], None, "batch.completed")
        finally:
            await deliverer.close()
    event = inside.client.webhooks.unwrap(receiver.received[1].body, receiver.received[1].headers, secret=secret)
    assert (event.id, event.data.id) == (done["id"], id_)


async def is_open(served: BatchServer, epoch: int) -> bool:
    return await served.batches.store.write(lambda tables: tables.runners.beat(epoch))


async def test_the_secret_of_callbacks_is_rotated(inside: BatchServer) -> None:
    first = (await inside.http.post("/v1/callback_secret/rotate", json={})).json()
    assert first["previous_until"] is None
    second = (await inside.http.post("/v1/callback_secret/rotate", json={})).json()
    assert second["signing_secret"] != first["signing_secret"]
    assert second["previous_until"] >= second["updated_at"] + 86_000
    body = {"keep_old_secret_active_for_24_hours": False}
    third = (await inside.http.post("/v1/callback_secret/rotate", json=body)).json()
    assert third["previous_until"] is None
    assert (await inside.http.get("/v1/callback_secret")).json() == third


async def test_an_administrator_reads_and_rotates_the_secrets_of_any_team(inside: BatchServer) -> None:
    query = {"team_id": "search"}
    for call in (inside.http.get("/v1/callback_secret", params=query),
                 inside.http.post("/v1/callback_secret/rotate", params=query, json={})):  # fmt: skip
        answer = await call
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "team_not_found")
    administration = inside.gateway.gateway.services.administration
    await administration.do(lambda tables: tables.keys.create_team("search"))
    rotated = await inside.http.post("/v1/callback_secret/rotate", params=query, json={})
    assert (await inside.http.get("/v1/callback_secret", params=query)).json() == rotated.json()
    assert (await inside.http.get("/v1/callback_secret")).json()["error"]["code"] == "no_callback_secret"
    hook = await inside.batches.callbacks.create("search", "nightly", "http://127.0.0.1:9/hook", ALL)
    path = f"/v1/webhook_endpoints/{hook.id}/rotate_secret"
    assert (await inside.http.post(path, json={})).status_code == 404, "the webhook is another team's"
    assert (await inside.http.post(path, params=query, json={})).json()["signing_secret"] != hook.secret


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/batch"])
@pytest.mark.parametrize(
    "url", ["http://93.184.216.34/", "https://localhost/", "https://169.254.169.254/", "https://10.0.0.1/", "x", ""]
)
async def test_faulty_callback_urls_are_refused(served: BatchServer, path: str, url: str) -> None:
    file = await served.upload(jsonl("a"))
    body = {"input_file_id": file.id, "callback_url": url}
    body |= {"endpoint": URL} if path.endswith("batches") else {"url": URL}
    answer = await served.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "callback_url")
    assert (await served.client.batches.list()).data == []


async def test_answers_are_stored_for_the_batchs_time(served: BatchServer) -> None:
    made = await served.create(jsonl("a"), output_expires_after={"anchor": "created_at", "seconds": 3600})
    await served.work(made.id, answered)
    done = await served.client.batches.retrieve(made.id)
    assert done.completed_at is not None
    file = await served.client.files.retrieve(done.output_file_id)
    assert file.expires_at == done.completed_at + 3600
    assert await served.batches.remove_old(done.completed_at + 3600.0) == 0
    assert await served.batches.remove_old(done.completed_at + 3602.0) == 1
    with pytest.raises(openai.NotFoundError):
        await served.client.files.content(done.output_file_id)


@pytest.mark.parametrize(
    "life", [{"anchor": "created_at", "seconds": 3599}, {"anchor": "created_at", "seconds": 2_592_001},
             {"anchor": "last_active_at", "seconds": 3600}, {"seconds": 3600}],
    ids=range(4),
)  # fmt: skip
async def test_faulty_times_are_refused(served: BatchServer, life: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await served.create(jsonl("a"), output_expires_after=life)
    assert str(refused.value.param).startswith("output_expires_after")


async def test_a_batch_lists_its_failing_callback(inside: BatchServer) -> None:
    file = await inside.upload(b"no json\n")
    batch = await inside.client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", extra_body={"callback_url": "http://127.0.0.1:9/"}
    )
    await inside.reach(batch.id, BatchState.FAILED)
    [delivery] = (await inside.http.get(f"/v1/batches/{batch.id}/deliveries")).json()["data"]
    assert (delivery["event_type"], delivery["state"]) == ("batch.failed", "pending")
