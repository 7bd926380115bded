"""A real batch's callback that fails twice is sent again, and OpenAI's SDK unwraps it."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from openai import OpenAI
from openai.types.webhooks import BatchCompletedWebhookEvent

from tests.eventually import eventually
from tests.system.batches.receiver import Receiver, receive
from tests.system.serving import Server

pytestmark = pytest.mark.real
ANSWERS = (500, 503, 200)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that gives the first answer until the test sets another one."""
    with receive(ANSWERS[0]) as receiver:
        yield receiver


def test_a_callback_that_fails_twice_is_delivered_and_unwrapped(
    server: Server, client: OpenAI, receiver: Receiver
) -> None:
    request = {"body": {"model": "starter-embed", "input": "good green house"}}
    body = {"url": "/v1/embeddings", "requests": [request], "callback_url": receiver.url}
    made = server.http.post("/v1/batch", json=body)
    assert made.status_code == 200, made.text
    path = made.json()["status_url"]

    def delivery() -> Any:
        return next(iter(server.http.get(f"{path}/deliveries").json()["data"]), {"status_code": None})

    def is_sent_again() -> bool:
        """Return False if it is being sent at this moment because its pause of some seconds is over."""
        return server.http.post(f"{path}/redeliver").status_code == 200

    for status, following in pairwise(ANSWERS):
        eventually(lambda status=status: delivery()["status_code"] == status, delivery)  # type: ignore[misc]
        assert delivery()["state"] in ("pending", "sending"), "it is tried again"
        receiver.answers = (following,)
        eventually(is_sent_again, delivery)
    eventually(lambda: delivery()["state"] == "delivered", delivery)
    secret = server.http.get("/v1/callback_secret").json()["signing_secret"]
    events = [client.webhooks.unwrap(data, headers, secret=secret) for data, headers in receiver.calls]
    assert len(events) >= len(ANSWERS), "or more, if a pause was over first"
    assert all(isinstance(event, BatchCompletedWebhookEvent) for event in events)
    assert {(event.id, event.data.id) for event in events} == {(delivery()["id"], made.json()["batch_id"])}
    assert client.batches.retrieve(made.json()["batch_id"]).status == "completed"
    log = server.log.read_text()
    assert secret not in log
    assert json.dumps(secret) not in log
