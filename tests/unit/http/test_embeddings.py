"""Embeddings in OpenAI's and TEI's dialects."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
from fastapi import FastAPI

from models.messages import EmbedRequest, EmbedResult, Event, ResponseEnd, Usage
from registry.errors import BadRequest, ContextLengthExceeded, QueueFull
from tests.unit.http.fakes import FakeGateway, Wire, application, left, recipe

DIMENSIONS = 3


def vectors(request: EmbedRequest) -> "np.ndarray[Any, Any]":
    """Return one row per input, each different."""
    rows = len(request.inputs)
    return (np.arange(rows * DIMENSIONS, dtype="<f4").reshape(rows, DIMENSIONS) - 0.1) / np.float32(3)


def answer(request: EmbedRequest) -> list[Event]:
    tokens = [len(item) for item in request.inputs]
    found = EmbedResult(vectors=vectors(request).tobytes(), dimensions=DIMENSIONS, tokens=tokens)
    return [found, ResponseEnd(usage=Usage(prompt_tokens=sum(tokens), batch=len(tokens)))]


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["embed"].script = answer


def engine_request(gateway: FakeGateway) -> EmbedRequest:
    request = gateway.links["embed"].requests[-1]
    assert isinstance(request, EmbedRequest)
    return request


async def test_an_answer_has_openais_shape(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": ["one", "three"]})
    assert response.status_code == 200
    body = response.json()
    assert (body["object"], body["model"]) == ("list", "embed")
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert {item["object"] for item in body["data"]} == {"embedding"}
    got = np.array([item["embedding"] for item in body["data"]], dtype="<f4")
    assert got.tobytes() == vectors(engine_request(gateway)).tobytes()
    assert response.headers["x-roundhouse-model"] == "embed@rev"
    assert "first;dur=" in response.headers["server-timing"]
    assert response.headers["x-request-id"]
    assert gateway.released == [True]
    assert gateway.outcomes() == {("embed", "/v1/embeddings", "ok"): 1.0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "embed", "input": "one"}),
        ("/embed", {"inputs": "one"}),
        ("/api/embed", {"model": "embed", "input": "one"}),
        ("/v1/embed", {"model": "embed", "texts": ["one"]}),
        ("/v2/embed", {"model": "embed", "texts": ["one"], "input_type": "search_query"}),
    ],
)
async def test_the_first_request_imports_its_library_in_a_thread(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], imports: list[tuple[str, bool]]
) -> None:
    for _ in range(2):
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
    assert imports == [("numpy", False)]


async def test_base64_has_the_same_bytes_as_float(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    body = {"model": "embed", "input": [f"text {i}" for i in range(40)]}
    floats = (await client.post("/v1/embeddings", json={**body, "encoding_format": "float"})).json()
    coded = (await client.post("/v1/embeddings", json={**body, "encoding_format": "base64"})).json()
    as_float = np.array([item["embedding"] for item in floats["data"]], dtype="<f4")
    as_base64 = [np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4") for item in coded["data"]]
    assert as_float.tobytes() == np.stack(as_base64).tobytes()
    assert coded["usage"] == floats["usage"]


async def test_large_answers_are_written_in_slices_and_in_order(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.http.embeddings.bodies.SLICE", DIMENSIONS * 2)
    body = (await client.post("/v1/embeddings", json={"model": "embed", "input": ["x"] * 7})).json()
    assert [item["index"] for item in body["data"]] == list(range(7))
    got = np.array([item["embedding"] for item in body["data"]], dtype="<f4")
    assert got.tobytes() == vectors(engine_request(gateway)).tobytes()


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("one", ["one"]),
        (["b", "a"], ["b", "a"]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
async def test_inputs_reach_the_engine(
    client: httpx.AsyncClient, gateway: FakeGateway, given: Any, inputs: Any
) -> None:
    for path, name in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        assert (await client.post(path, json={"model": "embed", name: given})).status_code == 200
        assert engine_request(gateway).inputs == inputs
        assert engine_request(gateway).normalize
        assert engine_request(gateway).truncate is None


@pytest.mark.parametrize(
    ("path", "more", "headers", "truncate"),
    [
        ("/v1/embeddings", {"truncate": False}, {}, False),
        ("/v1/embeddings", {"truncate": "NONE"}, {}, False),
        ("/v1/embeddings", {"truncate": "END"}, {}, True),
        ("/v1/embeddings", {"truncation": True}, {}, True),
        ("/v1/embeddings", {"truncation": False}, {}, False),
        ("/v1/embeddings", {"truncation": True, "truncate": False}, {}, False),
        ("/v1/embeddings", {"truncate_prompt_tokens": None}, {}, None),
        ("/v1/embeddings", {"truncate": False, "truncate_prompt_tokens": -1}, {}, True),
        ("/v1/embeddings", {}, {"Prefer": "handling=strict"}, False),
        ("/v1/embeddings", {"truncate": True}, {"Prefer": "handling=strict"}, True),
        ("/embed", {"truncate": False}, {}, False),
        ("/embed", {"truncation_direction": "Right"}, {}, None),
        ("/embed", {"truncation_direction": "Left"}, {}, False),  # only the right end can be cut
    ],
)
async def test_the_recipe_decides_on_cuts_unless_the_request_does(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str, more: Any, headers: Any, truncate: bool | None
) -> None:
    body = {"model": "embed", "input" if path == "/v1/embeddings" else "inputs": "x", **more}
    assert (await client.post(path, json=body, headers=headers)).status_code == 200
    assert engine_request(gateway).truncate is truncate


async def test_a_warning_of_the_engine_comes_with_those_about_fields(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    def cut(request: EmbedRequest) -> list[Event]:
        result, end = answer(request)
        assert isinstance(result, EmbedResult)
        return [msgspec.structs.replace(result, warning="inputs were cut"), end]

    gateway.links["embed"].script = cut
    for path, name in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        response = await client.post(path, json={"model": "embed", name: "x"})
        assert (response.status_code, response.headers["x-roundhouse-warning"]) == (200, "inputs were cut")
        response = await client.post(path, json={"model": "embed", name: "x", "colour": "red"})
        assert response.headers["x-roundhouse-warning"].endswith("; inputs were cut")


async def test_options_reach_the_engine(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    body = {
        "model": "embed",
        "input": "x",
        "dimensions": 2,
        "input_type": "search_query",
        "truncate": True,
        "user": "u",
    }
    assert (await client.post("/v1/embeddings", json=body)).status_code == 200
    assert (
        engine_request(gateway).dimensions,
        engine_request(gateway).prompt_name,
        engine_request(gateway).truncate,
    ) == (2, "query", True)
    body = {"model": "embed", "input": "x", "truncate_prompt_tokens": -1, "input_type": "passage", "dimensions": None}
    assert (await client.post("/v1/embeddings", json=body)).status_code == 200
    assert (engine_request(gateway).prompt_name, engine_request(gateway).truncate) == ("passage", True)


async def test_numbers_may_be_quoted_but_not_misspelled(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": ["1", "true"], "dimensions": "4"})
    assert response.status_code == 200
    assert (engine_request(gateway).inputs, engine_request(gateway).dimensions) == (["1", "true"], 4)
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": "a", "dimensions": 0})
    assert (response.status_code, engine_request(gateway).dimensions) == (200, None), "Infinity's client sends 0"
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": "a", "dimensions": "four"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("query", ["query", "search_query"]),
        ("search_query", ["query", "search_query"]),
        ("document", ["document", "passage", "corpus", "search_document"]),
        ("search_document", ["document", "passage", "corpus", "search_document"]),
        ("passage", ["passage", "document", "corpus", "search_document"]),
        (None, [None]),
    ],
)
async def test_an_input_type_selects_prompts_by_several_names(
    client: httpx.AsyncClient, gateway: FakeGateway, message: str | None, names: list[str | None]
) -> None:
    await client.post("/v1/embeddings", json={"model": "embed", "input": "x", "input_type": message})
    assert [engine_request(gateway).prompt_name, *engine_request(gateway).prompt_fallbacks] == names


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "embed"}, "input"),
        ({"input": "x"}, "model"),
        ({"model": "", "input": "x"}, "model"),
        ({"model": 3, "input": "x"}, "model"),
        ({"model": "embed", "input": ""}, "input"),
        ({"model": "embed", "input": []}, "input"),
        ({"model": "embed", "input": ["a", ""]}, "input[1]"),
        ({"model": "embed", "input": [[1], []]}, "input[1]"),
        ({"model": "embed", "input": ["a", 1]}, "input"),
        ({"model": "embed", "input": [-1]}, "input[0]"),
        ({"model": "embed", "input": [True]}, "input[0]"),
        ({"model": "embed", "input": {"text": "x"}}, "input"),
        ({"model": "embed", "input": ["x"] * 2049}, "input"),
        ({"model": "embed", "input": "x", "dimensions": -1}, "dimensions"),
        ({"model": "embed", "input": "x", "dimensions": "three"}, "dimensions"),
        ({"model": "embed", "input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"model": "embed", "input": "x", "input_type": "cat"}, "input_type"),
        ({"model": "embed", "input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"model": "embed", "input": "x", "truncate": "START"}, "truncate"),
        ({"model": "embed", "input": "x", "truncate": "end"}, "truncate"),
        ({"model": "embed", "input": "x", "task": "retrieval.query"}, "task"),
        ({"model": "embed", "input": "x", "prompt_name": "query"}, "prompt_name"),
        ({"model": "embed", "input": "x", "truncate_dim": 8}, "truncate_dim"),
        ({"model": "embed", "input": "x", "truncation_direction": "left"}, "truncation_direction"),
        ({"model": "chat", "input": "x"}, "model"),
    ],
)
async def test_faults_are_400_in_openais_shape(client: httpx.AsyncClient, body: Any, param: str) -> None:
    response = await client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]
    assert error["code"]


async def test_an_error_lists_the_values_of_a_field(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": "x", "encoding_format": "int8"})
    assert response.json()["error"]["message"].endswith("`$.encoding_format`: one of base64, float.")


async def test_2048_inputs_are_accepted(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": ["x"] * 2048})
    assert len(response.json()["data"]) == 2048


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'"x"', b'{"input":"\\udc00","model":"embed"}', b"[" * 9999]
)
async def test_a_body_that_is_no_json_object_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    for path in ("/v1/embeddings", "/embed"):
        response = await client.post(path, content=body)
        assert response.status_code == 400
        assert response.json()["error"]


async def test_the_error_of_an_unknown_model_lists_the_models(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/embeddings", json={"model": "embedd", "input": "x"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "embed" in response.json()["error"]["message"]


async def test_long_bodies_are_refused(tmp_path: Path) -> None:
    app = application(FakeGateway(tmp_path, max_json=100))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        response = await client.post("/v1/embeddings", json={"model": "embed", "input": "x" * 200})
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "payload_too_large"
        assert (await client.post("/embed", json={"inputs": "x" * 200})).json().keys() == {"error", "error_type"}


async def test_the_engines_refusal_keeps_status_code_and_param(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    refusal = ContextLengthExceeded("input[1] has 600 tokens; at most 512 fit.", param="input[1]")
    gateway.links["embed"].script = lambda _: [refusal]
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": ["a", "long"]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.json()["error"]["param"] == "input[1]"
    assert gateway.outcomes() == {("embed", "/v1/embeddings", "400"): 1.0}


async def test_an_error_names_the_clients_field_for_the_prompt(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["embed"].script = lambda _: [BadRequest("no prompt 'query'", param="prompt_name")]
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": "a", "input_type": "query"})
    assert response.json()["error"]["param"] == "input_type"


async def test_a_full_queue_is_429_with_retry_after(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.refuse = QueueFull("full", retry_after=2.2)
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    response = await client.post("/embed", json={"inputs": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert response.json()["error"] == "full"


@pytest.mark.parametrize(
    "broken",
    [
        EmbedResult(vectors=b"1234", dimensions=1, tokens=[1, 1]),
        EmbedResult(vectors=b"12345678", dimensions=1, tokens=[1]),
        EmbedResult(vectors=np.array([np.nan, 1], "<f4").tobytes(), dimensions=1, tokens=[1, 1]),
    ],
)
async def test_an_invalid_result_of_the_engine_is_a_500(
    client: httpx.AsyncClient, gateway: FakeGateway, broken: EmbedResult
) -> None:
    gateway.links["embed"].script = lambda _: [broken, ResponseEnd(usage=Usage())]
    response = await client.post("/v1/embeddings", json={"model": "embed", "input": ["a", "b"]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_failed"


async def test_a_client_that_leaves_stops_the_work(app: FastAPI, gateway: FakeGateway) -> None:
    wire = Wire(app, "/v1/embeddings", [json.dumps({"model": "embed", "input": "x"}).encode()])
    await left(wire, gateway, "embed")
    assert not wire.sent
    assert gateway.outcomes() == {("embed", "/v1/embeddings", "cancelled"): 1.0}


async def test_openais_client_reads_answers_and_errors(openai_client: openai.AsyncOpenAI, gateway: FakeGateway) -> None:
    """It requests base64 by default."""
    found = await openai_client.embeddings.create(model="embed", input=["a", "b"])
    assert found.usage.total_tokens == 2
    assert np.array(found.data[1].embedding, "<f4").tobytes() == vectors(engine_request(gateway))[1].tobytes()
    with pytest.raises(openai.BadRequestError) as caught:
        await openai_client.embeddings.create(model="embed", input="")
    assert caught.value.param == "input"
    with pytest.raises(openai.NotFoundError):
        await openai_client.embeddings.create(model="nobody", input="x")


# --- TEI -----------------------------------------------------------------------------------------------------------
async def test_teis_answer_is_a_bare_list(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await client.post("/embed", json={"inputs": ["a", "b"], "anything": "else"})
    assert np.array(response.json(), "<f4").tobytes() == vectors(engine_request(gateway)).tobytes()
    assert len((await client.post("/embed", json={"inputs": "a"})).json()) == 1


async def test_teis_options_reach_the_engine(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    body = {
        "inputs": "x", "normalize": False, "truncate": True, "truncation_direction": "Right", "prompt_name": "query",
        "dimensions": 8,
    }  # fmt: skip
    assert (await client.post("/embed", json=body)).status_code == 200
    got = engine_request(gateway)
    assert (got.normalize, got.truncate, got.prompt_name, got.dimensions) == (False, True, "query", 8)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": []}, {"inputs": ""}, {}, {"inputs": "x", "model": "nobody"}, {"inputs": "x", "model": "rerank"},
        {"inputs": "x", "truncate": True, "truncation_direction": "Left"}, {"inputs": "x", "input_type": "query"},
    ],
)  # fmt: skip
async def test_teis_faults_have_its_shape(client: httpx.AsyncClient, body: Any) -> None:
    response = await client.post("/embed", json=body)
    assert response.status_code in (400, 404)
    assert response.json().keys() == {"error", "error_type"}


async def test_tei_requires_a_name_if_there_are_several_models(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("one", "embed"), recipe("two", "embed")])
    gateway.links["two"].script = answer
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/embed", json={"inputs": "x"})
        assert response.status_code == 400
        assert "one, two" in response.json()["error"]
        assert (await client.post("/embed?model=two", json={"inputs": "x"})).status_code == 200
        assert (await client.post("/embed", json={"inputs": "x", "model": "two"})).status_code == 200


async def test_errors_of_the_engine_have_teis_shape(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["embed"].script = lambda _: [BadRequest("unknown prompt", param="prompt_name")]
    response = await client.post("/embed", json={"inputs": "x", "prompt_name": "poem"})
    assert response.status_code == 400
    assert response.json()["error"] == "unknown prompt"
