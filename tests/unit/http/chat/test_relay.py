"""The relay of the chat family: names in two fields, and the engine's errors in each dialect's shape."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from models.messages import Chunk, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.errors import Conflict, DeadlineExceeded, EngineFailed
from tests.unit.http.fakes import FakeGateway, Wire, application, left, recipe

REQUEST = {"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}


def answers(gateway: FakeGateway, status: int, *parts: bytes) -> None:
    events: Sequence[Event] = [ResponseStart(status=status, content_type="application/json"), *map(_chunk, parts)]
    gateway.links["chat"].script = lambda _: [*events, ResponseEnd(usage=Usage())]


def _chunk(part: bytes) -> Chunk:
    return Chunk(data=part)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error")]
)
async def test_vllms_errors_have_anthropics_shape_on_its_paths(
    client: httpx.AsyncClient, gateway: FakeGateway, status: int, kind: str
) -> None:
    answers(gateway, status, b'{"error":{"message":"too ', b'big","type":"Bad Request","param":null,"code":400}}')
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = await client.post(path, json=REQUEST)
        assert response.status_code == status
        error = {"type": kind, "message": "too big"}
        assert response.json() == {"type": "error", "error": error, "request_id": response.headers["request-id"]}


async def test_anthropics_errors_have_the_requests_id(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """Also as the last event of a stream, and for bodies that cannot be read."""
    opened = ResponseStart(status=200, content_type="text/event-stream")
    gateway.links["chat"].script = lambda _: [opened, _chunk(b"event: ping\ndata: {}\n\n"), EngineFailed("it broke")]
    streamed = await client.post("/v1/messages", json=REQUEST, headers={"X-Request-Id": "mine-1"})
    event = streamed.text.rpartition("data: ")[2]
    assert json.loads(event)["request_id"] == "mine-1"
    broken = await client.post("/v1/messages", content=b"{", headers={"X-Request-Id": "mine-2"})
    assert (broken.json()["request_id"], broken.headers["request-id"]) == ("mine-2", "mine-2")


async def test_errors_of_messages_have_anthropics_types(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """The type says whose fault it is, so a client's fault must not look like a failure of the service."""
    assert (await client.get("/v1/messages")).json()["error"]["type"] == "invalid_request_error"
    for error, kind in (
        (Conflict("busy"), "invalid_request_error"),
        (DeadlineExceeded("late"), "timeout_error"),
        (EngineFailed("it broke"), "api_error"),
    ):
        gateway.links["chat"].script = lambda _, error=error: [error]  # type: ignore[misc]
        assert (await client.post("/v1/messages", json=REQUEST)).json()["error"]["type"] == kind


async def test_vllms_errors_have_openais_fields(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    answers(gateway, 400, b'{"error":{"message":"m","code":400}}')
    error = {"message": "m", "type": "invalid_request_error", "param": None, "code": "invalid_value"}
    assert (await client.post("/v1/chat/completions", json=REQUEST)).json() == {"error": error}
    answers(gateway, 404, b'{"error":{"message":"m","type":"NotFoundError","param":"p","code":404}}')
    error = {"message": "m", "type": "invalid_request_error", "param": "p", "code": "model_not_found"}
    assert (await client.post("/v1/responses", json=REQUEST)).json() == {"error": error}


async def test_bodies_other_than_errors_are_passed_on(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    answers(gateway, 400, b"plain words")
    assert (await client.post("/v1/messages", json=REQUEST)).content == b"plain words"
    answers(gateway, 200, b'{"error":', b"1}")
    assert (await client.post("/v1/messages", json=REQUEST)).json() == {"error": 1}


async def test_the_body_is_passed_on_with_the_engines_name(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    answers(gateway, 200, b"{}")
    sent: dict[str, Any] = {**REQUEST, "logit_bias": {"1": 2.5}, "anything": [None, {"x": 1}]}
    assert (await client.post("/v1/chat/completions", json=sent)).status_code == 200
    request = gateway.links["chat"].requests[-1]
    assert isinstance(request, HttpCall)
    assert (request.path, request.served, request.display_name) == ("/v1/chat/completions", "chat", "chat")
    assert httpx.Response(200, content=request.body).json() == sent


async def test_faults_of_adapter_id_name_their_field(client: httpx.AsyncClient) -> None:
    for more, status, code, param in (
        ({"adapter_id": "nobody"}, 404, "model_not_found", "adapter_id"),
        ({"adapter_id": 3}, 400, "invalid_value", "adapter_id"),
        ({"adapter_id": "nobody", "model": "embed"}, 400, "wrong_task", "model"),
        ({"lora_name": "nobody"}, 404, "model_not_found", "adapter_id"),
        ({"lora_path": "nobody", "adapter_id": "nobody"}, 404, "model_not_found", "adapter_id"),
        ({"lora_path": ["nobody"]}, 400, "invalid_value", "lora_path"),
        ({"lora_name": "somebody", "adapter_id": "nobody"}, 400, "invalid_value", "lora_name"),
    ):
        response = await client.post("/v1/chat/completions", json={**REQUEST, **more})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, code, param)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b'data: {"error":{"message":"it broke","type":"server_error"'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"it broke"'),
    ],
)
async def test_an_error_in_mid_stream_is_its_last_event(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str, event: bytes
) -> None:
    started = ResponseStart(status=200, content_type="text/event-stream")
    gateway.links["chat"].script = lambda _: [started, Chunk(data=b"data: {}\n\n"), EngineFailed("it broke")]
    response = await client.post(path, json={**REQUEST, "stream": True})
    assert response.status_code == 200
    assert response.content.startswith(b"data: {}\n\n" + event)
    assert response.content.endswith(b"\n\n")
    assert gateway.outcomes() == {("chat", path, "engine_failed"): 1.0}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_unreadable_bodies_are_refused(client: httpx.AsyncClient, path: str) -> None:
    deep = b'{"a":' + b"[" * 9999 + b"]" * 9999 + b"}"
    for body, code in ((b"{", "invalid_json"), (b"\xff", "invalid_json"), (deep, "json_too_deep")):
        response = await client.post(path, content=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"]
        if path != "/v1/messages":  # Anthropic's errors have no code
            assert error["code"] == code


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_work(app: FastAPI, gateway: FakeGateway, stream: bool) -> None:
    answers(gateway, 200, b"{}")
    wire = Wire(app, "/v1/chat/completions", [json.dumps({**REQUEST, "stream": stream}).encode()])
    await left(wire, gateway, "chat")
    assert gateway.outcomes() == {("chat", "/v1/chat/completions", "cancelled"): 1.0}


async def test_names_that_clients_make_up_are_answered_only_as_aliases(tmp_path: Path) -> None:
    """Hugging Face's clients call every model of an address 'dummy' or 'tgi'."""
    named = recipe("chat", "chat").model_copy(update={"aliases": ("dummy", "tgi")})
    for recipes, status in (([named], 200), ([recipe("chat", "chat")], 404)):
        gateway = FakeGateway(tmp_path, recipes)
        answers(gateway, 200, b"{}")
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for name in ("dummy", "tgi"):
                response = await client.post("/v1/chat/completions", json={**REQUEST, "model": name})
                assert response.status_code == status
                if status == 200:
                    assert response.headers["x-roundhouse-model"] == "chat@rev"
                    assert gateway.links["chat"].requests[-1].served == "chat"


async def test_requests_with_json_do_not_pass_the_router(gateway: FakeGateway) -> None:
    """The router's coroutines would add memory to each stream and time to each token."""
    app = application(gateway)
    app.router.routes.clear()
    answers(gateway, 200, b'{"choices":[]}')
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as bare:
        assert (await bare.post("/v1/chat/completions", json=REQUEST)).status_code == 200
        assert (await bare.get("/v1/chat/completions")).status_code == 404
