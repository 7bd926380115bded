"""Scores of pairs: vLLM's dialect over one scripted engine."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from registry.errors import ContextLengthExceeded
from runtime.http.rerank.answers import sigmoid
from tests.unit.http.fakes import FakeGateway
from tests.unit.http.rerank.script import DOCUMENTS, LOGITS, answer


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["rerank"].script = answer


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_one_query_and_many_texts_are_one_call(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str
) -> None:
    response = await client.post(path, json={"model": "rerank", "text_1": "q", "text_2": DOCUMENTS})
    found = response.json()
    assert found["object"] == "list"
    assert found["data"] == [
        {"index": i, "object": "score", "score": sigmoid(LOGITS[d])} for i, d in enumerate(DOCUMENTS)
    ]
    assert found["usage"]["total_tokens"] == 30
    assert len(gateway.links["rerank"].requests) == 1
    assert response.headers["x-roundhouse-model"] == "rerank@rev"


async def test_pairs_are_grouped_by_query_and_keep_their_order(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    pairs = {"text_1": ["a", "b", "a"], "text_2": DOCUMENTS, "use_activation": False}
    found = (await client.post("/score", json=pairs)).json()
    assert [item["score"] for item in found["data"]] == [LOGITS[d] for d in DOCUMENTS]
    sent = {r.query: r.documents for r in gateway.links["rerank"].requests}
    assert sent == {"a": ["low", "middle"], "b": ["high"]}
    assert [r.document_numbers for r in gateway.links["rerank"].requests] == [[0, 2], [1]], (
        "so that errors name the right document"
    )


@pytest.mark.parametrize(
    ("texts", "more", "chunks"),
    [
        (DOCUMENTS, {}, None),
        (["high", "low§§", "middle§"], {}, "6"),
        (["high", "low§§", "middle§"], {"truncate_prompt_tokens": -1}, None),
    ],
)
async def test_chunks_of_long_texts_are_reported(
    client: httpx.AsyncClient, texts: list[str], more: dict[str, int], chunks: str | None
) -> None:
    response = await client.post("/score", json={"text_1": ["a", "b", "a"], "text_2": texts, **more})
    assert response.status_code == 200
    assert response.headers.get("x-roundhouse-chunks") == chunks


@pytest.mark.parametrize("names", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2")])
async def test_both_sides_may_have_vllms_other_names(client: httpx.AsyncClient, names: tuple[str, str]) -> None:
    found = (await client.post("/score", json={names[0]: "q", names[1]: {"text": "high"}})).json()
    assert [item["score"] for item in found["data"]] == [sigmoid(3.0)]


@pytest.mark.parametrize(
    ("expected", "param"),
    [
        ({}, "text_1"),
        ({"text_1": "q"}, "text_1"),
        ({"text_1": [], "text_2": "x"}, "text_1"),
        ({"text_1": "q", "text_2": []}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": ["x"]}, "text_2"),
        ({"text_1": "", "text_2": ["x"]}, "text_1[0]"),
        ({"text_1": "q", "text_2": ["x"] * 2049}, "text_2"),
        ({"text_1": "q", "text_2": {"content": []}}, "text_2.text"),
        ({"text_1": "q", "text_2": "x", "instruction": "y"}, "instruction"),
        ({"text_1": "q", "text_2": "xyz", "max_tokens_per_doc": -2}, "max_tokens_per_doc"),
    ],
)
async def test_faults_of_score_requests_name_their_field(client: httpx.AsyncClient, expected: Any, param: str) -> None:
    response = await client.post("/score", json=expected)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_one_failing_query_fails_the_request_and_ends_the_others(
    app: FastAPI, client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    link = gateway.links["rerank"]
    link.script = lambda r: [ContextLengthExceeded("too long")] if r.query == "bad" else answer(r)
    response = await client.post("/score", json={"text_1": ["a", "bad", "c"], "text_2": DOCUMENTS})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert len(link.requests) == 3
    assert gateway.released == [True]


@pytest.mark.parametrize("sides", [("text_1", "text_2"), ("queries", "items")])
@pytest.mark.parametrize(("param", "side"), [("query", 0), ("documents", 1)])
async def test_an_error_of_the_engine_names_the_field_that_was_sent(
    client: httpx.AsyncClient, gateway: FakeGateway, sides: tuple[str, str], param: str, side: int
) -> None:
    gateway.links["rerank"].script = lambda _: [ContextLengthExceeded("too long", param=param)]
    response = await client.post("/score", json={sides[0]: "q", sides[1]: DOCUMENTS})
    assert response.json()["error"]["param"] == sides[side]
