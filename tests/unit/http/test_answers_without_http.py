"""Lines of batches: the gateway answers the bytes of a body with a status, headers and bytes, without HTTP objects."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.messages import Chunk, EmbedResult, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.errors import DeadlineExceeded, EngineFailed, ProviderFailed, QueueFull, RoundhouseError, StorageFull
from runtime.gateway.context import RequestContext
from runtime.gateway.record import End
from runtime.http import errors
from runtime.http.routes import ENDPOINTS
from tenants.caller import Caller, ServiceClass
from tests.unit.http.answering import Answered, answer
from tests.unit.http.fakes import FakeGateway
from tests.unit.http.rerank.script import answer as rerank

CONTEXT = RequestContext("line-7", Caller("team-a"), ServiceClass.BATCH, source="batch")


@pytest.fixture
async def gateway(tmp_path: Path) -> FakeGateway:
    gateway = FakeGateway(tmp_path)
    chat: list[Event] = [
        ResponseStart(status=200, content_type="application/json"),
        Chunk(data=b'{"id":"1",'),
        Chunk(data=b'"object":"chat.completion"}'),
        ResponseEnd(usage=Usage(prompt_tokens=5, completion_tokens=2)),
    ]
    gateway.links["chat"].script = lambda _: chat
    gateway.links["embed"].script = lambda r: [
        EmbedResult(vectors=np.ones((1, 2), "<f4").tobytes(), dimensions=2, tokens=[3]),
        ResponseEnd(usage=Usage(prompt_tokens=3)),
    ]
    gateway.links["rerank"].script = rerank
    return gateway


async def ask(gateway: FakeGateway, path: str, body: dict[str, Any]) -> tuple[Answered, Any]:
    found = await answer(gateway.gateway, CONTEXT, ENDPOINTS[path], json.dumps(body).encode())
    return found, json.loads(found.body)


async def test_a_chat_is_answered(gateway: FakeGateway) -> None:
    found, body = await ask(gateway, "/v1/chat/completions", {"model": "chat", "messages": [], "adapter_id": None})
    assert (found.status, found.headers["content-type"]) == (200, "application/json")
    assert found.headers["X-Roundhouse-Model"] == "chat@rev"
    assert body == {"id": "1", "object": "chat.completion"}
    [request] = gateway.links["chat"].requests
    assert isinstance(request, HttpCall)
    assert json.loads(request.body) == {"model": "chat", "messages": []}
    assert request.request_id.startswith("line-7-")


async def test_embeddings_are_answered(gateway: FakeGateway) -> None:
    found, body = await ask(gateway, "/v1/embeddings", {"model": "embed", "input": "hi"})
    assert found.status == 200
    assert body["data"] == [{"object": "embedding", "index": 0, "embedding": [1.0, 1.0]}]


async def test_a_rerank_is_answered(gateway: FakeGateway) -> None:
    found, body = await ask(gateway, "/v2/rerank", {"model": "rerank", "query": "q", "documents": ["low", "high"]})
    assert found.status == 200
    assert [item["index"] for item in body["results"]] == [1, 0]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/chat/completions", {"model": "nobody"}, 404, {"error": {"code": "model_not_found"}}),
        ("/v1/messages", {"model": "embed"}, 400, {"type": "error"}),
        ("/v2/rerank", {"query": 3}, 400, {"message": "Expected `str`, got `int` - at `$.query`."}),
        ("/rerank", {"texts": 3}, 400, {"error_type": "Validation"}),
        ("/generate", {"inputs": ""}, 422, {"error_type": "validation"}),
    ],
)
async def test_errors_are_answers_of_the_dialect(
    gateway: FakeGateway, path: str, body: dict[str, Any], status: int, field: dict[str, Any]
) -> None:
    found, error = await ask(gateway, path, body)
    assert found.status == status
    for key, value in field.items():
        assert (error[key].items() >= value.items()) if isinstance(value, dict) else error[key] == value


@pytest.mark.parametrize("error", [EngineFailed, ProviderFailed, DeadlineExceeded, StorageFull])
def test_a_failure_on_our_side_is_no_validation_error(error: type[RoundhouseError]) -> None:
    """Text Generation Inference's client raises an error of this name, and a 502 blamed its request."""
    assert errors.body(error("no luck"), errors.Dialect.TEI)["error_type"] == "Backend"
    assert errors.body(error("no luck"), errors.Dialect.TGI)["error_type"] == "generation"


async def test_a_full_queue_has_a_retry_after(gateway: FakeGateway) -> None:
    gateway.refuse = QueueFull("full", retry_after=2.2)
    found, _ = await ask(gateway, "/v1/embeddings", {"model": "embed", "input": "hi"})
    assert (found.status, found.headers["Retry-After"]) == (429, "3")


async def test_each_line_leaves_a_record_with_its_context(gateway: FakeGateway) -> None:
    await ask(gateway, "/v1/chat/completions", {"model": "chat", "messages": []})
    await ask(gateway, "/v1/chat/completions", {"model": "nobody", "messages": []})
    done, refused = gateway.records.all
    assert replace(done.context, hints=CONTEXT.hints) == CONTEXT
    assert done.context.hints.size > 0
    assert done.target is not None
    assert (done.end, done.target.model, done.usage.completion_tokens) == (End.DONE, "chat", 2)
    assert (refused.end, refused.target, refused.status, refused.code) == (End.REFUSED, None, 404, "model_not_found")
