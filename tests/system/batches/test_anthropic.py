"""Message Batches through Anthropic's SDK, and the short form `/v1/batch`, on the real server and engines."""

import json
from typing import Any

import anthropic
import pytest
from openai import OpenAI

from tests.eventually import PATIENCE, eventually
from tests.system.serving import Server

pytestmark = pytest.mark.real


def params(text: str, model: str = "uppercase", **more: Any) -> dict[str, Any]:
    return {
        "model": model, "max_tokens": 32, "messages": [{"role": "user", "content": text}], "temperature": 0, **more,
    }  # fmt: skip


def test_from_creation_to_results(server: Server) -> None:
    requests: Any = [
        {"custom_id": "one", "params": params("good green house")},
        {"custom_id": "unknown", "params": params("hello", "nobody")},
        {"custom_id": "stream", "params": params("hello", stream=True)},
        {"custom_id": "none", "params": params("hello", max_tokens=0)},
        {"custom_id": "two", "params": params("red bird", "starter-chat:last-word")},
    ]
    with anthropic.Anthropic(base_url=server.url, api_key="none", timeout=PATIENCE, max_retries=0) as client:
        batches = client.messages.batches
        made = batches.create(requests=requests)
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 5)
        eventually(
            lambda: batches.retrieve(made.id).processing_status == "ended", lambda: str(batches.retrieve(made.id))
        )
        counts = batches.retrieve(made.id).request_counts
        assert (counts.processing, counts.succeeded, counts.errored) == (0, 2, 3)
        results = {one.custom_id: one.result for one in batches.results(made.id)}
        assert list(results) == ["one", "unknown", "stream", "none", "two"]
        texts = [results[name].message.content[0].text for name in ("one", "two")]
        assert texts == ["GOOD GREEN HOUSE", "bird"]
        assert results["unknown"].error.error.type == "not_found_error"
        assert {results[name].error.error.type for name in ("stream", "none")} == {"invalid_request_error"}
        assert batches.delete(made.id).type == "message_batch_deleted"


def test_a_batch_may_be_larger_than_any_other_body(server: Server, client: OpenAI) -> None:
    """Its bytes and values are over the bounds of other JSON bodies: it is written to disk as it arrives."""
    body = {"model": "starter-chat", "messages": [{"role": "user", "content": "hello " * 1000}]}
    requests = [{"body": {**body, "stop": ["x"] * 20}} for _ in range(4000)]
    content = json.dumps({"requests": requests, "url": "/v1/chat/completions"}).encode()
    assert len(content) > 20 * 2**20
    answer = server.http.post("/v1/batch", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    batch = client.batches.cancel(answer.json()["batch_id"])
    assert batch.request_counts.total == 4000
    eventually(lambda: client.batches.retrieve(batch.id).status == "cancelled", lambda: str(batch))
    assert server.http.post(
        "/v1/messages/batches", content=b"{", headers={"Content-Type": "application/json"}
    ).json()["type"] == "error"  # fmt: skip
