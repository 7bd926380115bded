"""Rerank in the OpenAPI document."""

from runtime.http.errors import Dialect
from runtime.http.openapi_parts import (
    ANY_OBJECT,
    COUNT,
    INFERENCE,
    NUMBER,
    STRING,
    Json,
    Operation,
    Operations,
    array,
    either,
    json_of,
    model_call,
    nullable,
    record,
    ref,
    structs,
)
from runtime.http.rerank.bodies import CohereBody, JinaBody, ScoreBody, TeiBody
from runtime.http.rerank.score import SIDES

_SCORE: Json = {"type": "number", "minimum": 0, "maximum": 1}
_TOKENS = record({"prompt_tokens": COUNT, "total_tokens": COUNT})


def _bodies() -> dict[str, Json]:
    found = structs(JinaBody, CohereBody, TeiBody, ScoreBody)
    found["ScoreBody"]["anyOf"] = [{"required": list(sides)} for sides in SIDES]
    return found


SCHEMAS: dict[str, Json] = {
    **_bodies(),
    "JinaRanking": record(
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
        }
    ),
    "InfinityRanking": record(
        {
            "id": STRING,
            "object": {"const": "rerank"},
            "created": COUNT,
            "model": STRING,
            "usage": _TOKENS,
            "results": array(record({"index": COUNT, "relevance_score": NUMBER, "document": nullable(STRING)})),
        }
    ),
    "CohereRanking": record(
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
    "TeiRanking": array(record({"index": COUNT, "score": NUMBER, "text": STRING}, ["index", "score"])),
    "Scores": record(
        {
            "id": STRING,
            "object": {"const": "list"},
            "created": COUNT,
            "model": STRING,
            "data": array(record({"index": COUNT, "object": {"const": "score"}, "score": NUMBER})),
            "usage": ref("Usage"),
        }
    ),
}

_DOCUMENTS = ["A slot is a worker process.", "Bread is baked in an oven."]
_CHUNKS = (
    "Documents over the context length are scored in chunks, and the best chunk counts; the header X-Roundhouse-Chunks "
    "then tells how many chunks were scored."
)
_ERRORS_422 = (*INFERENCE, 422)


def _score(id_: str) -> Operation:
    return model_call(
        id_, "Rerank", "Scores of pairs (vLLM)", json_of("Scores"), body=json_of("ScoreBody"),
        description="One text and any number, or pair by pair. `model` may be left out where there is one reranker. "
        f"{_CHUNKS}",
        examples={"pairs": {"model": "starter-rerank", "text_1": "what is a slot?", "text_2": _DOCUMENTS}},
    )  # fmt: skip


def _cohere(id_: str, description: str) -> Operation:
    return model_call(
        id_, "Rerank", "Rerank (Cohere v2)", json_of("CohereRanking"), body=json_of("CohereBody"),
        description=description, dialects=(Dialect.COHERE,), errors=_ERRORS_422,
        examples={"best": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS, "top_n": 1}},
    )  # fmt: skip


OPERATIONS: Operations = {
    ("post", "/v1/rerank"): model_call(
        "rerank", "Rerank", "Rerank (Jina)", json_of("JinaRanking"), body=json_of("JinaBody"),
        description=f"Cohere v1's and vLLM's fields are taken too. {_CHUNKS}",
        dialects=(Dialect.JINA,),
        examples={"documents": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS}},
    ),
    ("post", "/v2/rerank"): _cohere("rerankCohere", _CHUNKS),
    ("post", "/v1/v2/rerank"): _cohere("rerankCohereV1", "The same, for clients whose base address ends in /v1."),
    ("post", "/infinity/rerank"): model_call(
        "rerankInfinity", "Rerank", "Rerank (Infinity)", json_of("InfinityRanking"), body=json_of("JinaBody"),
        description=f"Documents come back as strings, with `return_documents: true`. {_CHUNKS}",
        dialects=(Dialect.JINA,),
        examples={"documents": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS}},
    ),
    ("post", "/rerank"): model_call(
        "rerankTei", "Rerank", "Rerank (Text Embeddings Inference, or Jina)",
        {"application/json": either(ref("TeiRanking"), ref("JinaRanking"))},
        body={"application/json": either(ref("TeiBody"), ref("JinaBody"))},
        description="With `texts` it answers as TEI does, with `documents` as Jina does.",
        parameters=("Prefer", "Model"), dialects=(Dialect.TEI, Dialect.JINA),
        examples={"texts": {"query": "what is a slot?", "texts": _DOCUMENTS}},
    ),
    ("post", "/score"): _score("score"),
    ("post", "/v1/score"): _score("scoreV1"),
}  # fmt: skip
