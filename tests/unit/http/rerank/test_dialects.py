"""Properties of every dialect of rerank and score: errors, disconnects, caps and order."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from models.messages import RerankResult, ResponseEnd, Usage
from registry.errors import EngineFailed, Unavailable
from runtime.http.rerank.answers import Ranking, sigmoid
from tests.unit.http.fakes import FakeGateway, Wire, application, left
from tests.unit.http.rerank.script import PATHS, answer, body


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["rerank"].script = answer


SHAPES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "/v1/rerank": (body(), {"detail", "error"}),
    "/v2/rerank": (body(), {"message"}),
    "/rerank": ({"query": "q", "texts": ["x"]}, {"error", "error_type"}),
    "/score": ({"text_1": "q", "text_2": "x"}, {"error"}),
    "/v1/ranking": ({"query": {"text": "q"}, "passages": [{"text": "x"}]}, {"error"}),
}


@pytest.mark.parametrize("path", list(SHAPES))
async def test_errors_have_the_dialects_shape(client: httpx.AsyncClient, gateway: FakeGateway, path: str) -> None:
    expected, keys = SHAPES[path]
    gateway.refuse = Unavailable("loading", retry_after=4)
    response = await client.post(path, json=expected)
    assert (response.status_code, response.headers["retry-after"]) == (503, "4")
    assert response.json().keys() == keys
    gateway.refuse = None
    gateway.links["rerank"].script = lambda _: [EngineFailed("broke")]
    response = await client.post(path, json=expected)
    assert response.status_code == 500
    assert response.json().keys() == keys
    response = await client.post(path, content=b"{")
    assert response.status_code == 400
    if path != "/rerank":  # the dialect of this path is known only from the body
        assert response.json().keys() == keys


@pytest.mark.parametrize("path", list(SHAPES))
async def test_a_client_that_leaves_stops_the_work(app: FastAPI, gateway: FakeGateway, path: str) -> None:
    wire = Wire(app, path, [json.dumps(SHAPES[path][0]).encode()])
    await left(wire, gateway, "rerank")


@pytest.mark.parametrize(
    "broken",
    [
        RerankResult(logits=[1.0], chunks=[1], tokens=[1]),
        RerankResult(logits=[math.nan] * 3, chunks=[1] * 3, tokens=[1] * 3),
        RerankResult(logits=[1.0] * 3, chunks=[1] * 2, tokens=[1] * 3),
    ],
)
async def test_an_invalid_result_of_the_engine_is_a_500(
    client: httpx.AsyncClient, gateway: FakeGateway, broken: RerankResult
) -> None:
    gateway.links["rerank"].script = lambda _: [broken, ResponseEnd(usage=Usage())]
    assert (await client.post("/v1/rerank", json=body())).status_code == 500


async def test_bodies_are_capped_in_each_dialect(tmp_path: Path) -> None:
    transport = httpx.ASGITransport(app=application(FakeGateway(tmp_path, max_json=64)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in PATHS:
            assert (await client.post(path, json=body(query="x" * 100))).status_code == 413


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(0, 40))
def test_the_order_is_by_score_and_stable(logits: list[float], top_n: int) -> None:
    ranking = Ranking(RerankResult(logits=logits, chunks=[1] * len(logits), tokens=[1] * len(logits)), len(logits))
    order = ranking.best(top_n)
    assert len(order) == min(top_n or len(logits), len(logits))
    assert all((-logits[a], a) < (-logits[b], b) for a, b in itertools.pairwise(order))


@given(st.floats(allow_nan=False))
def test_sigmoid_is_between_0_and_1(logit: float) -> None:
    assert 0 <= sigmoid(logit) <= 1
    assert sigmoid(logit) + sigmoid(-logit) == pytest.approx(1)
