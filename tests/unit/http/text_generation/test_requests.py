"""Text generation in the dialect of TGI and LoRAX: requests as sent to vLLM, their models, and refusals."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed, QueueFull, RoundhouseError, Unavailable
from runtime.http.text_generation.bodies import GenerateParameters
from tests.unit.http.fakes import FakeGateway, Wire, application, left, recipe
from tests.unit.http.text_generation.script import (
    END,
    FIRST,
    PATHS,
    PLAIN,
    REQUEST,
    SAMPLED,
    TOKEN_DETAILS,
    answers,
    sent,
    streams,
)


# --- the request ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, PLAIN),
        (None, PLAIN),
        (dict.fromkeys(GenerateParameters.__struct_fields__), PLAIN),
        ({"unknown": 3}, PLAIN),
        ({"watermark": False, "best_of": 1, "top_n_tokens": 0, "apply_chat_template": False, "api_token": "t"}, PLAIN),
        ({"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "top_k": 0, "do_sample": False}, PLAIN),
        ({"temperature": 0, "do_sample": True, "seed": 3}, PLAIN),
        ({"max_new_tokens": 7, "ignore_eos_token": True}, {**PLAIN, "max_tokens": 7, "ignore_eos": True}),
        ({"stop": ["a"], "stop_sequences": ["b"]}, {**PLAIN, "stop": ["a", "b"]}),
        (
            {"repetition_penalty": 1.5, "frequency_penalty": -1, "seed": 3},
            {**PLAIN, "repetition_penalty": 1.5, "frequency_penalty": -1.0},
        ),
        ({"do_sample": True}, SAMPLED),
        ({"top_k": 5}, {**SAMPLED, "top_k": 5}),
        ({"top_p": 0.5, "seed": 2**64 - 1}, {**SAMPLED, "top_p": 0.5, "seed": 2**63 - 1}),
        ({"temperature": 0.5, "seed": 3}, {**SAMPLED, "temperature": 0.5, "seed": 3}),
        ({"typical_p": 1, "top_p": 0.8, "top_k": 4}, {**SAMPLED, "top_p": 0.8, "top_k": 4}),
        ({"truncate": 4}, {**PLAIN, "truncate_prompt_tokens": 4, "truncation_side": "left"}),
        ({"grammar": {"type": "regex", "value": "a+"}}, {**PLAIN, "structured_outputs": {"regex": "a+"}}),
        (
            {"grammar": {"type": "json", "value": {"enum": [1]}}},
            {**PLAIN, "structured_outputs": {"json": {"enum": [1]}}},
        ),
        ({"grammar": {"type": "json", "value": "{}"}}, {**PLAIN, "structured_outputs": {"json": {}}}),
        (
            {"grammar": {"type": "json_schema", "value": {"name": "n", "schema": {"enum": [1]}}}},
            {**PLAIN, "structured_outputs": {"json": {"enum": [1]}}},
        ),
        ({"response_format": {"type": "json_object"}}, {**PLAIN, "structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_object", "schema": {"enum": [1]}}},
            {**PLAIN, "structured_outputs": {"json": {"enum": [1]}}},
        ),
        ({"details": True}, {**PLAIN, **TOKEN_DETAILS}),
        ({"decoder_input_details": True}, {**PLAIN, **TOKEN_DETAILS, "echo": True}),
    ],
    ids=str,
)  # fmt: skip
async def test_a_request_is_translated_for_vllm(
    client: httpx.AsyncClient, gateway: FakeGateway, parameters: Any, expected: dict[str, Any]
) -> None:
    answers(gateway, {**END, "prompt_token_ids": []})
    response = await client.post("/generate", json={**REQUEST, "parameters": parameters})
    assert response.status_code == 200, response.text
    assert sent(gateway) == expected


async def test_no_more_tokens_are_requested_than_the_context_has(tmp_path: Path) -> None:
    short = recipe("chat", "chat").model_copy(update={"context_length": 64})
    gateway = FakeGateway(tmp_path, [short])
    answers(gateway, END)
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post("/generate", json=REQUEST)).status_code == 200
    assert sent(gateway)["max_tokens"] == 64


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"watermark": True}, "watermark"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"top_n_tokens": 1}, "logprobs"),
        ({"return_k_alternatives": 2}, "logprobs"),
        ({"merged_adapters": {"ids": ["a"]}}, "POST /v1/adapters/combine"),
        ({"apply_chat_template": True}, "/v1/chat/completions"),
        ({"adapter_source": "pbase"}, "POST /v1/adapters"),
        ({"typical_p": 0}, "typical_p"),
        ({"typical_p": 0.95}, "leave 'typical_p' out"),
        ({"typical_p": 0.95, "temperature": 0}, "leave 'typical_p' out"),
        ({"top_p": 1.5}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop": "x"}, "stop"),
        ({"grammar": {"type": "regex", "value": {}}}, "string"),
        ({"grammar": {"type": "json", "value": "{"}}, "not valid JSON"),
        ({"grammar": {"type": "json", "value": "[" * 9999 + "]" * 9999}}, "not valid JSON"),
        ({"grammar": {"type": "json", "value": "3"}}, "object"),
        ({"grammar": {"type": "json", "value": f'{{"enum": [{"1e308," * 5000}1]}}'}}, "smaller"),
        ({"grammar": {"type": "json_schema", "value": {"name": "n"}}}, "object"),
        ({"grammar": {"type": "bnf", "value": "x"}}, "grammar.type"),
        ({"grammar": {"type": "json", "value": {}}, "response_format": {"type": "json_object"}}, "not both"),
    ],
    ids=str,
)
async def test_parameters_that_cannot_be_honoured_are_refused(
    client: httpx.AsyncClient, gateway: FakeGateway, parameters: Any, words: str
) -> None:
    for path in PATHS:
        response = await client.post(path, json={**REQUEST, "parameters": parameters})
        assert response.status_code == 422
        assert response.json().keys() == {"error", "error_type"}
        assert response.json()["error_type"] == "validation"
        assert words in response.json()["error"]
    assert gateway.links["chat"].requests == []


async def test_unreadable_bodies_are_refused(client: httpx.AsyncClient) -> None:
    for body, status in ((b"{", 400), (b"\xff", 400), (b"[]", 422), (b"{}", 422), (b'{"inputs":""}', 422)):
        response = await client.post("/", content=body)
        assert (response.status_code, response.json()["error_type"]) == (status, "validation")
    response = await client.post("/", content=b'{"inputs":' + b"[" * 9999 + b"]" * 9999 + b"}")
    assert response.status_code in (400, 422)


async def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, max_json=100)
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/generate", json={"inputs": "x" * 200})
    assert (response.status_code, response.json()["error_type"]) == (413, "validation")


# --- the model -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "body", "status", "words"),
    [
        ("", {}, 200, ""),
        ("?model=chat", {}, 200, ""),
        ("?model=nobody", {"model": "chat"}, 200, ""),
        ("?model=nobody", {}, 404, "no model or adapter 'nobody'"),
        ("?model=embed", {}, 422, "made for embed"),
        ("", {"parameters": {"adapter_id": ""}}, 200, ""),
        ("", {"parameters": {"adapter_id": "nobody", "adapter_source": "hub"}}, 404, "no adapter 'nobody' on model"),
        ("", {"parameters": {"adapter_id": "s3://b/x", "adapter_source": "s3"}}, 404, "recipe of 'chat'"),
        ("?model=embed", {"parameters": {"adapter_id": "nobody"}}, 422, "made for embed"),
        ("", {"parameters": {"adapter_id": 3}}, 422, "adapter_id"),
        ("", {"adapter_id": "nobody"}, 422, "another name here: 'parameters.adapter_id'"),
    ],
)  # fmt: skip
async def test_the_model_comes_from_the_query_or_is_the_only_one(
    client: httpx.AsyncClient, gateway: FakeGateway, query: str, body: Any, status: int, words: str
) -> None:
    answers(gateway, END)
    response = await client.post(f"/generate{query}", json={**REQUEST, **body})
    assert response.status_code == status, response.text
    assert words in response.json().get("error", "")


async def test_there_is_no_default_among_several_models(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("chat", "chat"), recipe("other", "chat")])
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for adapter, status, words in (
            (None, 422, "There are: chat, other"),
            ("nobody", 404, "no model or adapter 'nobody'"),
            ("chat", 404, "is a model"),
        ):
            response = await client.post("/generate", json={**REQUEST, "parameters": {"adapter_id": adapter}})
            assert response.status_code == status
            assert words in response.json()["error"]


# --- errors --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", PATHS)
async def test_vllms_refusals_are_translated(client: httpx.AsyncClient, gateway: FakeGateway, path: str) -> None:
    reported = (
        "max_tokens=9 is over max_model_len=4. `prompt` and the prompt are too long. (parameter=max_tokens, value=9)"
    )
    answers(gateway, {"error": {"message": reported, "type": "BadRequestError", "code": 400}}, 400)
    response = await client.post(path, json=REQUEST)
    text = "max_new_tokens=9 is over max_model_len=4. `inputs` and the prompt are too long."
    assert (response.status_code, response.json()) == (422, {"error": text, "error_type": "validation"})
    assert gateway.outcomes() == {("chat", path, "422"): 1.0}
    gateway.links["chat"].script = lambda _: [
        ResponseStart(status=400, content_type="text/plain"), Chunk(data=b"no"), ResponseEnd(usage=Usage()),
    ]  # fmt: skip
    response = await client.post(path, json=REQUEST)
    assert (response.status_code, response.json()["error_type"]) == (422, "validation")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QueueFull("full", retry_after=3), "overloaded"),
        (Unavailable("later", retry_after=3), "overloaded"),
        (EngineFailed("broken"), "generation"),
    ],
)
async def test_errors_before_the_engine_are_in_this_dialect(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str, error: RoundhouseError, kind: str
) -> None:
    gateway.refuse = error
    response = await client.post(path, json=REQUEST)
    assert (response.status_code, response.json()) == (error.status, {"error": error.message, "error_type": kind})
    assert response.headers.get("retry-after") == ("3" if error.retry_after else None)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_work(app: FastAPI, gateway: FakeGateway, stream: bool) -> None:
    streams(gateway, FIRST)
    wire = Wire(app, "/", [json.dumps({**REQUEST, "stream": stream}).encode()])
    await left(wire, gateway, "chat")
    assert gateway.outcomes() == {("chat", "/", "cancelled"): 1.0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_warning_of_the_engine_is_passed_on(tmp_path: Path, path: str, stream: bool) -> None:
    """It is about `max_new_tokens`, so only a client that sent that field gets it."""
    gateway = FakeGateway(tmp_path)
    if stream or path == "/generate_stream":
        streams(gateway, FIRST, END)
    else:
        answers(gateway, {"text": "a", "finish_reason": "stop"})
    script = gateway.links["chat"].script
    gateway.links["chat"].script = lambda request: [
        ResponseStart(event.status, event.content_type, "cut") if isinstance(event, ResponseStart) else event
        for event in script(request)
    ]
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(path, json={**REQUEST, "stream": stream, "parameters": {"max_new_tokens": 9}})
        assert (answer.status_code, answer.headers["x-roundhouse-warning"]) == (200, "cut")
        answer = await client.post(path, json={**REQUEST, "stream": stream})
        assert (answer.status_code, answer.headers.get("x-roundhouse-warning")) == (200, None)
