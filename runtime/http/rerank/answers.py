"""Scores, their order, and the body in each dialect."""

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import msgspec

from models.messages import RerankResult
from registry.errors import EngineFailed
from runtime.http.schema import ANY_OBJECT, COUNT, NUMBER, STRING, Json, array, component, nullable, record, ref

DOCUMENTS_PER_SEARCH_UNIT = 100
"""Documents per search unit, in which Cohere bills. Each chunk of a long document counts as one."""


def sigmoid(logit: float) -> float:
    """1 / (1 + e^-x) without overflow; between 0 and 1."""
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    grown = math.exp(logit)
    return grown / (1.0 + grown)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Raw scores of documents in the client's order. Raises EngineFailed if the engine's answer is inconsistent."""

    result: RerankResult
    documents: int

    def __post_init__(self) -> None:
        result = self.result
        if not len(result.logits) == len(result.chunks) == len(result.tokens) == self.documents:
            raise EngineFailed(f"The engine answered {self.documents} documents with {len(result.logits)} scores.")
        if not all(map(math.isfinite, result.logits)):
            raise EngineFailed("The engine's scores are not all finite.")

    @property
    def tokens(self) -> int:
        return sum(self.result.tokens)

    @property
    def chunks(self) -> int:
        return sum(self.result.chunks)

    def best(self, top_n: int | None) -> list[int]:
        """Indices, best first. Equal scores keep the client's order. None or 0 returns all."""
        logits = self.result.logits
        order = sorted(range(len(logits)), key=lambda index: -logits[index])
        return order[:top_n] if top_n else order


def headers(rankings: Sequence[Ranking]) -> dict[str, str]:
    """The header with the number of scored chunks, if documents were split."""
    chunks = sum(ranking.chunks for ranking in rankings)
    return {"X-Roundhouse-Chunks": str(chunks)} if chunks > sum(ranking.documents for ranking in rankings) else {}


def _document(value: str | dict[str, Any]) -> dict[str, Any]:
    return {"text": value} if isinstance(value, str) else value


def jina(
    ranking: Ranking,
    model: str,
    top_n: int | None,
    documents: Sequence[str | dict[str, Any]] | None,
    *,
    raw: bool,
    counts: bool,
) -> bytes:
    """`documents`: repeated in the results, unless None. `counts`: also as Xinference writes them."""
    results: list[dict[str, Any]] = []
    for index in ranking.best(top_n):
        logit, chunks = ranking.result.logits[index], ranking.result.chunks[index]
        item: dict[str, Any] = {"index": index, "relevance_score": sigmoid(logit)}
        if documents is not None:
            item["document"] = _document(documents[index])
        if raw:
            item["raw_score"] = logit
        if chunks > 1:
            item["chunks"] = chunks
        results.append(item)
    usage = {"prompt_tokens": ranking.tokens, "total_tokens": ranking.tokens}
    body = {"id": f"rerank-{uuid.uuid4().hex}", "object": "list", "model": model, "usage": usage, "results": results}
    if counts:
        body["meta"] = {"tokens": {"input_tokens": ranking.tokens, "output_tokens": 0}}
    return msgspec.json.encode(body)


def cohere(ranking: Ranking, top_n: int | None, documents: Sequence[str | dict[str, Any]] | None) -> bytes:
    results: list[dict[str, Any]] = []
    for index in ranking.best(top_n):
        item: dict[str, Any] = {"index": index, "relevance_score": sigmoid(ranking.result.logits[index])}
        if documents is not None:
            item["document"] = _document(documents[index])
        results.append(item)
    meta: dict[str, Any] = {
        "api_version": {"version": "2", "is_experimental": False},
        "billed_units": {"search_units": math.ceil(ranking.chunks / DOCUMENTS_PER_SEARCH_UNIT)},
        "tokens": {"input_tokens": ranking.tokens, "output_tokens": 0},
    }
    split = sum(count > 1 for count in ranking.result.chunks)
    if split:
        meta["warnings"] = [
            f"{split} of {ranking.documents} documents were longer than the model's context. They were scored in "
            "chunks, and the best chunk counts."
        ]
    return msgspec.json.encode({"id": str(uuid.uuid4()), "results": results, "meta": meta})


def tei(ranking: Ranking, texts: Sequence[str] | None, *, raw: bool) -> bytes:
    """A bare list, best first. `texts`: repeated in the results, unless None."""
    items: list[dict[str, Any]] = []
    for index in ranking.best(None):
        logit = ranking.result.logits[index]
        item: dict[str, Any] = {"index": index}
        if texts is not None:
            item["text"] = texts[index]
        item["score"] = logit if raw else sigmoid(logit)
        items.append(item)
    return msgspec.json.encode(items)


def nim(ranking: Ranking) -> bytes:
    """NVIDIA NIM's answer, best first."""
    rankings = [{"index": index, "logit": ranking.result.logits[index]} for index in ranking.best(None)]
    usage = {"prompt_tokens": ranking.tokens, "total_tokens": ranking.tokens}
    return msgspec.json.encode({"rankings": rankings, "usage": usage})


def scores(logits: Sequence[float], tokens: int, model: str, *, raw: bool) -> bytes:
    """vLLM's answer to /score, in the order of the pairs."""
    data = [
        {"index": index, "object": "score", "score": logit if raw else sigmoid(logit)}
        for index, logit in enumerate(logits)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return msgspec.json.encode(
        {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time()),
            "model": model,
            "data": data,
            "usage": usage,
        }
    )


# --- schemas ---------------------------------------------------------------------------------------------------------
_SCORE: Json = {"type": "number", "minimum": 0, "maximum": 1}
_TOKENS = record({"prompt_tokens": COUNT, "total_tokens": COUNT})
JINA_RANKING = component(
    "JinaRanking",
    record(
        {
            "id": STRING,
            "object": {"const": "list"},
            "model": STRING,
            "usage": _TOKENS,
            "results": array(
                record(
                    {
                        "index": COUNT,
                        "relevance_score": _SCORE,
                        "document": ANY_OBJECT,
                        "raw_score": NUMBER,
                        "chunks": {"type": "integer", "minimum": 2},
                    },
                    ["index", "relevance_score"],
                )
            ),
            "meta": record({"tokens": record({"input_tokens": COUNT, "output_tokens": COUNT})}),
        },
        ["id", "object", "model", "usage", "results"],
    ),
)
COHERE_RANKING = component(
    "CohereRanking",
    record(
        {
            "id": STRING,
            "results": array(
                record(
                    {"index": COUNT, "relevance_score": _SCORE, "document": ANY_OBJECT}, ["index", "relevance_score"]
                )
            ),
            "meta": record(
                {
                    "api_version": record({"version": STRING}),
                    "billed_units": record({"search_units": COUNT}),
                    "tokens": record({"input_tokens": COUNT, "output_tokens": COUNT}),
                    "warnings": array(STRING),
                },
                ["api_version", "billed_units", "tokens"],
            ),
        }
    ),
)
TEI_RANKING = component(
    "TeiRanking", array(record({"index": COUNT, "score": NUMBER, "text": STRING}, ["index", "score"]))
)
NIM_RANKING = component(
    "NimRanking", record({"rankings": array(record({"index": COUNT, "logit": NUMBER})), "usage": _TOKENS})
)
component(
    "Usage",
    record(
        {"prompt_tokens": COUNT, "completion_tokens": nullable(COUNT), "total_tokens": COUNT},
        ["prompt_tokens", "total_tokens"],
    ),
)
SCORES = component(
    "Scores",
    record(
        {
            "id": STRING,
            "object": {"const": "list"},
            "created": COUNT,
            "model": STRING,
            "data": array(record({"index": COUNT, "object": {"const": "score"}, "score": NUMBER})),
            "usage": ref("Usage"),
        }
    ),
)
