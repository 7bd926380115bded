"""Rerank: Jina's, Cohere's and TEI's dialects over one scripted engine."""

from typing import Any

import cohere
import httpx
import pytest
from cohere.errors import BadRequestError
from fastapi import FastAPI

from runtime.http.rerank.answers import sigmoid
from tests.unit.http.fakes import FakeGateway
from tests.unit.http.rerank.script import DOCUMENTS, LOGITS, answer, body, engine_request


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["rerank"].script = answer


# --- Jina ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
async def test_jinas_answer_is_ordered_and_has_usage(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str
) -> None:
    response = await client.post(path, json=body())
    assert response.status_code == 200
    found = response.json()
    assert found["model"] == "rerank"
    assert found["usage"] == {"prompt_tokens": 30, "total_tokens": 30}
    assert [item["index"] for item in found["results"]] == [1, 2, 0]
    assert found["results"][0] == {"index": 1, "relevance_score": sigmoid(3.0), "document": {"text": "high"}}
    assert all(0 <= item["relevance_score"] <= 1 for item in found["results"])
    assert response.headers["x-roundhouse-model"] == "rerank@rev"
    assert "x-roundhouse-chunks" not in response.headers
    assert gateway.outcomes() == {("rerank", path, "ok"): 1.0}


async def test_top_n_return_documents_and_raw_scores_are_honoured(client: httpx.AsyncClient) -> None:
    found = (await client.post("/v1/rerank", json=body(top_n=2, return_documents=False, raw_scores=True))).json()
    assert found["results"] == [
        {"index": 1, "relevance_score": sigmoid(3.0), "raw_score": 3.0},
        {"index": 2, "relevance_score": sigmoid(0.5), "raw_score": 0.5},
    ]
    assert len((await client.post("/v1/rerank", json=body(top_n=0))).json()["results"]) == 3
    assert len((await client.post("/v1/rerank", json=body(top_n=99))).json()["results"]) == 3


async def test_ragflows_request_for_xinference_is_accepted(client: httpx.AsyncClient) -> None:
    """RAGFlow writes booleans as strings, and reads the token count from `meta`."""
    found = (await client.post("/v1/rerank", json=body(return_documents="true", return_len="true"))).json()
    assert [result["document"]["text"] for result in found["results"]] == ["high", "middle", "low"]
    assert found["meta"] == {"tokens": {"input_tokens": 30, "output_tokens": 0}}
    found = (await client.post("/v1/rerank", json=body(return_documents="False", top_n="1"))).json()
    assert [result.keys() for result in found["results"]] == [{"index", "relevance_score"}]
    assert "meta" not in found


async def test_documents_may_be_objects_with_rank_fields(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    documents = [{"text": "high", "url": "u"}, "low"]
    found = (await client.post("/v1/rerank", json=body(query={"text": "q"}, documents=documents))).json()
    assert engine_request(gateway).documents == ["high", "low"]
    assert engine_request(gateway).query == "q"
    assert found["results"][0]["document"] == {"text": "high", "url": "u"}
    documents = [{"title": "T", "body": "B", "year": 1999}]
    await client.post("/v1/rerank", json=body(documents=documents, rank_fields=["body"]))
    assert engine_request(gateway).documents == ["B"]
    await client.post("/v1/rerank", json=body(documents=documents, rank_fields=["title", "year"]))
    assert engine_request(gateway).documents == ["title: T\nyear: 1999"]


async def test_chunks_of_long_documents_are_reported(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    response = await client.post("/v1/rerank", json=body(documents=["a§b§c", "low"]))
    assert response.headers["x-roundhouse-chunks"] == "4"
    assert response.json()["results"][0]["chunks"] == 3
    assert "chunks" not in response.json()["results"][1]
    for more in ({"truncate": True}, {"truncation": True}, {"truncate_prompt_tokens": -1}):
        assert (await client.post("/v1/rerank", json=body(documents=["a§b§c"], **more))).status_code == 200
        assert engine_request(gateway).truncate


@pytest.mark.parametrize(
    ("path", "more", "limits"),
    [
        ("/v1/rerank", {}, (0, 0, 0)),
        ("/v1/rerank", {"max_tokens_per_doc": 0, "max_tokens_per_query": 0}, (0, 0, 0)),
        ("/v1/rerank", {"max_tokens_per_doc": 9, "max_tokens_per_query": 4, "max_chunks_per_doc": 2}, (4, 9, 2)),
        ("/v1/rerank", {"max_doc_length": 7, "max_query_length": 3}, (3, 7, 0)),
        ("/v1/rerank", {"max_doc_length": 7, "max_tokens_per_doc": 5}, (0, 5, 0)),
        ("/v2/rerank", {"max_tokens_per_doc": 6, "max_chunks_per_doc": 1}, (0, 6, 1)),
        ("/score", {"max_tokens_per_doc": 6, "max_tokens_per_query": 2}, (2, 6, 0)),
    ],
)
async def test_limits_reach_the_engine(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str, more: Any, limits: tuple[int, int, int]
) -> None:
    expected = {"text_1": "q", "text_2": DOCUMENTS} if path == "/score" else body()
    assert (await client.post(path, json={**expected, **more})).status_code == 200
    request = engine_request(gateway)
    assert (request.max_query_tokens, request.max_document_tokens, request.max_chunks) == limits
    assert not request.truncate


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["x"] * 2049}, "documents"),
        ({"documents": "x"}, "documents"),
        ({"documents": [3]}, "documents[0]"),
        ({"documents": [{"image": "x"}]}, "documents[0]"),
        ({"documents": [{"text": ["x"]}]}, "documents[0].text"),
        ({"documents": ["x", {"title": "x"}], "rank_fields": ["body"]}, "documents[1]"),
        ({"rank_fields": []}, "rank_fields"),
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "two"}, "top_n"),
        ({"max_chunks_per_doc": 0}, "max_chunks_per_doc"),
        ({"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"return_embeddings": True}, "return_embeddings"),
        ({"use_activation": False}, "use_activation"),
        ({"top_k": 3}, "top_k"),
        ({"truncate_prompt_tokens": 7}, "truncate_prompt_tokens"),
        ({"model": "embed"}, "model"),
    ],
)
async def test_jinas_faults_are_400(client: httpx.AsyncClient, more: Any, param: str) -> None:
    response = await client.post("/v1/rerank", json=body(**more))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["detail"] == response.json()["error"]["message"]  # read by Jina's clients


async def test_a_model_must_be_named_where_the_vendors_require_it(client: httpx.AsyncClient) -> None:
    expected = {"query": "q", "documents": ["x"]}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        response = await client.post(path, json=expected)
        assert response.status_code == 400
        assert "'model'" in response.text


async def test_2048_documents_are_accepted(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/rerank", json=body(documents=["x"] * 2048))
    assert [item["index"] for item in response.json()["results"]] == list(range(2048)), "ties keep the client's order"


# --- Cohere --------------------------------------------------------------------------------------------------------
async def test_coheres_answer_has_billed_units_and_warnings(client: httpx.AsyncClient) -> None:
    found = (await client.post("/v2/rerank", json=body(top_n=1, max_tokens_per_doc=4096, priority=1))).json()
    assert found["results"] == [{"index": 1, "relevance_score": sigmoid(3.0)}]
    assert found["id"]
    assert found["meta"] == {
        "api_version": {"version": "2", "is_experimental": False},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": 30, "output_tokens": 0},
    }
    found = (await client.post("/v2/rerank", json=body(documents=["a§b"] + ["x"] * 100))).json()
    assert found["meta"]["billed_units"] == {"search_units": 2}
    assert "1 of 101 documents" in found["meta"]["warnings"][0]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"top_k": 3}, 400),
        ({"top_n": 0}, 400),
        ({"documents": []}, 400),
        ({"relevant_spans": {"mode": "enabled"}}, 400),
        ({"max_tokens_per_doc": -1}, 400),
        ({"model": "nobody"}, 404),
    ],
)
async def test_coheres_faults_have_its_shape(client: httpx.AsyncClient, more: Any, status: int) -> None:
    response = await client.post("/v2/rerank", json=body(**more))
    assert response.status_code == status
    assert response.json().keys() == {"message"}


async def test_coheres_client_reads_answers_and_errors(cohere_client: cohere.AsyncClientV2) -> None:
    found = await cohere_client.rerank(model="rerank", query="q", documents=DOCUMENTS, top_n=2)
    assert [(item.index, item.relevance_score) for item in found.results] == [(1, sigmoid(3.0)), (2, sigmoid(0.5))]
    assert found.meta is not None
    assert found.meta.billed_units is not None
    assert found.meta.billed_units.search_units == 1
    with pytest.raises(BadRequestError, match="empty"):
        await cohere_client.rerank(model="rerank", query="", documents=DOCUMENTS)
    with pytest.raises(BadRequestError, match="top_k"):
        await cohere_client.rerank(
            model="rerank",
            query="q",
            documents=DOCUMENTS,
            request_options={"additional_body_parameters": {"top_k": 2}, "max_retries": 0},
        )


async def test_coheres_v1_client_speaks_to_jinas_path(app: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as http:
        client = cohere.AsyncClient(api_key="x", base_url="http://test", httpx_client=http)
        found = await client.rerank(
            model="rerank", query="q", documents=[{"text": "high"}, {"text": "low"}], rank_fields=["text"], top_n=1
        )
    assert [(item.index, item.relevance_score) for item in found.results] == [(0, sigmoid(3.0))]
    assert found.results[0].document is not None
    assert found.results[0].document.text == "high"


# --- TEI -----------------------------------------------------------------------------------------------------------
async def test_teis_answer_is_an_ordered_list(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    expected = {"query": "q", "texts": DOCUMENTS, "anything": "else"}
    found = (await client.post("/rerank", json=expected)).json()
    assert found == [{"index": i, "score": sigmoid(LOGITS[DOCUMENTS[i]])} for i in (1, 2, 0)]
    found = (await client.post("/rerank", json={**expected, "raw_scores": True, "return_text": True})).json()
    assert found[0] == {"index": 1, "text": "high", "score": 3.0}
    await client.post("/rerank?model=rerank", json={**expected, "truncate": True})
    assert engine_request(gateway).truncate
    assert (await client.post("/rerank?model=other", json=expected)).status_code == 404


@pytest.mark.parametrize(
    "more", [{"texts": []}, {"query": ""}, {"texts": [1]}, {"truncate": True, "truncation_direction": "Left"}]
)
async def test_teis_faults_have_its_shape(client: httpx.AsyncClient, more: Any) -> None:
    response = await client.post("/rerank", json={"query": "q", "texts": DOCUMENTS, **more})
    assert response.status_code == 400
    assert response.json().keys() == {"error", "error_type"}


# --- NVIDIA NIM ----------------------------------------------------------------------------------------------------
NIM = {"query": {"text": "q"}, "passages": [{"text": text} for text in DOCUMENTS]}


async def test_nims_answer_has_logits(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    found = await client.post("/v1/ranking", json={"model": "rerank", "truncate": "NONE", **NIM})
    rankings = [{"index": index, "logit": LOGITS[DOCUMENTS[index]]} for index in (1, 2, 0)]
    assert found.json() == {"rankings": rankings, "usage": {"prompt_tokens": 30, "total_tokens": 30}}
    assert not engine_request(gateway).truncate
    await client.post("/v1/ranking", json={"truncate": "END", **NIM})
    assert (engine_request(gateway).truncate, engine_request(gateway).documents) == (True, DOCUMENTS)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"passages": []}, "passages"),
        ({"query": {"text": ""}}, "query.text"),
        ({"query": {"text": "q", "image": "data:image/png;base64,aGk="}}, "query.image"),
        ({"passages": [{"text": "x", "image": "data:"}]}, "passages[0].image"),
        ({"truncate": "START"}, "truncate"),
        ({"top_k": 1}, "top_k"),
    ],
)
async def test_nims_faults_name_the_field(client: httpx.AsyncClient, more: Any, param: str) -> None:
    response = await client.post("/v1/ranking", json=NIM | more)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
