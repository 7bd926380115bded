"""The answers of a scripted reranker, and the requests that it got."""

from typing import Any

from models.messages import Event, RerankRequest, RerankResult, ResponseEnd, Usage
from registry.errors import RoundhouseError
from tests.unit.http.fakes import FakeGateway

DOCUMENTS = ["low", "high", "middle"]
LOGITS = {"low": -4.0, "high": 3.0, "middle": 0.5}
PATHS = ("/v1/rerank", "/v2/rerank", "/rerank", "/score", "/v1/score", "/v1/ranking")


def answer(request: RerankRequest) -> list[Event | RoundhouseError]:
    logits = [LOGITS.get(document, 0.0) for document in request.documents]
    chunks = [1 if request.truncate else 1 + document.count("§") for document in request.documents]
    found = RerankResult(logits=logits, chunks=chunks, tokens=[10] * len(logits))
    return [found, ResponseEnd(usage=Usage(prompt_tokens=10 * len(logits)))]


def engine_request(gateway: FakeGateway) -> RerankRequest:
    request = gateway.links["rerank"].requests[-1]
    assert isinstance(request, RerankRequest)
    return request


def body(**more: Any) -> dict[str, Any]:
    return {"model": "rerank", "query": "q", "documents": DOCUMENTS, **more}
