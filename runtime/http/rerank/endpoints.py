"""Rerank and scores in five dialects over one engine call.

| path                | dialect                       | errors                 | no model named   |
|---------------------|-------------------------------|------------------------|------------------|
| /v1/rerank          | Jina (Cohere v1, vLLM)        | `detail`, `error`      | refused          |
| /v2/rerank          | Cohere v2                     | `message`              | refused          |
| /rerank             | TEI by `texts`, else Jina     | `error`, `error_type`  | the only one     |
| /score, /v1/score   | vLLM                          | OpenAI's               | the only one     |
| /v1/ranking         | NVIDIA NIM                    | OpenAI's               | the only one     |

Unknown fields are ignored with a warning, unless they would have changed the ranking.

`relevance_score` is the sigmoid of the model's logit. Documents longer than the context are scored in chunks, of which
the best one counts, unless the client requests truncation; the header X-Roundhouse-Chunks shows that. Limits on tokens
and chunks cut queries and documents before that.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec

from models.messages import Event, RerankRequest, RerankResult
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import decode_known, refuse_fields
from runtime.http.dialect import JSON, Endpoint, ParsedRequest, Parts, whole_answer
from runtime.http.errors import Dialect
from runtime.http.rerank import answers as results
from runtime.http.rerank.answers import COHERE_RANKING, JINA_RANKING, NIM_RANKING, SCORES, TEI_RANKING, Ranking
from runtime.http.rerank.bodies import (
    CHANGING,
    DEFAULTS,
    INSTEAD,
    SIDES,
    CohereBody,
    JinaBody,
    NimBody,
    ScoreBody,
    TeiBody,
    context_only,
    document_texts,
    pairs,
    query_text,
    tightest,
)
from runtime.http.route import RouteGroup
from runtime.http.schema import INFERENCE, component, structs

Write = Callable[[Ranking, str], bytes]
"""Builds the body from the scores and the model's name."""
TEXTS = {"documents": "texts"}


async def rankings(requests: Sequence[RerankRequest], events: AsyncIterator[Event]) -> list[Ranking]:
    """The engine's answers in the order of the requests. Raises EngineFailed for any other result."""
    rerank_results = [event async for event in events if isinstance(event, RerankResult)]
    if len(rerank_results) != len(requests):
        raise EngineFailed("The engine answered with something other than a ranking.")
    return [Ranking(result, len(request.documents)) for request, result in zip(requests, rerank_results, strict=True)]


def _parsed(
    request: RerankRequest,
    write: Write,
    model_ref: ModelRef,
    dialect: Dialect,
    unknown: Sequence[str],
    renamed: Mapping[str, str] | None = None,
) -> ParsedRequest:
    left_out = refuse_fields(unknown, CHANGING, INSTEAD.get(dialect, {}))

    async def render(target: Target, events: AsyncIterator[Event]) -> Parts:
        [ranking] = await rankings([request], events)
        async for part in whole_answer(write(ranking, target.requested), JSON, results.headers([ranking])):
            yield part

    return ParsedRequest(model_ref, lambda _: [request], render, dialect, renamed=renamed or {}, left_out=left_out)


def _jina(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    body, unknown = decode_known(data, JinaBody, DEFAULTS, quoted_values=True)

    def write(ranking: Ranking, model: str) -> bytes:
        documents = None if body.return_documents is False else body.documents
        raw, counts = bool(body.raw_scores), bool(body.return_len)
        return results.jina(ranking, model, body.top_n, documents, raw=raw, counts=counts)

    return _parsed(_rerank_request(body), write, ModelRef(Task.RERANK, body.model), Dialect.JINA, unknown)


def _rerank_request(body: JinaBody) -> RerankRequest:
    return RerankRequest(
        query=query_text(body.query),
        documents=document_texts(body.documents, fields=body.rank_fields),
        truncate=bool(body.truncate or body.truncation or context_only(body.truncate_prompt_tokens)),
        max_query_tokens=tightest(body.max_tokens_per_query, body.max_query_length),
        max_document_tokens=tightest(body.max_tokens_per_doc, body.max_doc_length),
        max_chunks=body.max_chunks_per_doc or 0,
    )


def _cohere(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    body, unknown = decode_known(data, CohereBody, DEFAULTS, quoted_values=True)
    if body.relevant_spans is not None and body.relevant_spans.get("mode") != "disabled":
        raise BadRequest(
            "Relevant spans are not available from this model. Leave 'relevant_spans' out.",
            param="relevant_spans",
            code="unsupported_value",
        )
    request = RerankRequest(
        query=query_text(body.query),
        documents=document_texts(body.documents, fields=body.rank_fields),
        max_document_tokens=body.max_tokens_per_doc or 0,
        max_chunks=body.max_chunks_per_doc or 0,
    )

    def write(ranking: Ranking, _model: str) -> bytes:
        return results.cohere(ranking, body.top_n, body.documents if body.return_documents else None)

    return _parsed(request, write, ModelRef(Task.RERANK, body.model), Dialect.COHERE, unknown)


def _tei(data: bytes, query: Mapping[str, str]) -> ParsedRequest:
    body, unknown = decode_known(data, TeiBody, DEFAULTS, quoted_values=True)
    if body.truncate and body.truncation_direction in ("Left", "left"):
        raise BadRequest(
            "Texts can be cut on the right only. Leave 'truncation_direction' out.",
            param="truncation_direction",
            code="unsupported_value",
        )
    text, texts = query_text(body.query), document_texts(body.texts, "texts")
    request = RerankRequest(query=text, documents=texts, truncate=bool(body.truncate))

    def write(ranking: Ranking, _model: str) -> bytes:
        return results.tei(ranking, body.texts if body.return_text else None, raw=bool(body.raw_scores))

    model_ref = ModelRef(Task.RERANK, body.model or query.get("model"), optional=True)
    return _parsed(request, write, model_ref, Dialect.TEI, unknown, TEXTS)


def _nim(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    body, unknown = decode_known(data, NimBody, DEFAULTS, quoted_values=True)
    request = RerankRequest(
        query=query_text(body.query.text, "query.text"),
        documents=document_texts([passage.text for passage in body.passages], "passages"),
        truncate=body.truncate == "END",
    )
    model_ref, renamed = ModelRef(Task.RERANK, body.model, optional=True), {"documents": "passages"}
    return _parsed(request, lambda ranking, _: results.nim(ranking), model_ref, Dialect.OPENAI, unknown, renamed)


def _score(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    """Parse a score request: one engine call for each query."""
    body, unknown = decode_known(data, ScoreBody, DEFAULTS, quoted_values=True)
    left_out = refuse_fields(unknown, CHANGING)
    score_pairs = pairs(body)
    truncate = context_only(body.truncate_prompt_tokens)
    requests = [
        RerankRequest(
            query=query,
            documents=[score_pairs.all[place][1] for place in document_numbers],
            document_numbers=document_numbers,
            truncate=truncate,
            max_query_tokens=body.max_tokens_per_query or 0,
            max_document_tokens=body.max_tokens_per_doc or 0,
        )
        for query, document_numbers in score_pairs.by_query()
    ]
    model_ref = ModelRef(Task.RERANK, body.model, optional=True)
    renamed = dict(zip(("query", "documents"), score_pairs.sides, strict=True))

    async def render(target: Target, events: AsyncIterator[Event]) -> Parts:
        ranked = await rankings(requests, events)
        logits = score_pairs.in_order([ranking.result.logits for ranking in ranked])
        tokens = sum(ranking.tokens for ranking in ranked)
        scores = results.scores(logits, tokens, target.requested, raw=body.use_activation is False)
        async for part in whole_answer(scores, JSON, results.headers(ranked)):
            yield part

    return ParsedRequest(model_ref, lambda _: requests, render, Dialect.OPENAI, renamed=renamed, left_out=left_out)


# --- paths -----------------------------------------------------------------------------------------------------------
class _TextsOrNot(msgspec.Struct):
    texts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _tei_or_jina(body: bytes) -> Dialect:
    try:
        decoded = msgspec.json.decode(body, type=_TextsOrNot)
    except NOT_JSON:
        return Dialect.JINA
    return Dialect.JINA if decoded.texts is msgspec.UNSET else Dialect.TEI


def _parse_tei_or_jina(body: bytes, query: Mapping[str, str]) -> ParsedRequest:
    """Parse the body as TEI's if it has the field `texts`, else as Jina's."""
    return (_tei if _tei_or_jina(body) is Dialect.TEI else _jina)(body, query)


_route = RouteGroup("Rerank")
_DOCUMENTS = ["A slot is a worker process.", "Bread is baked in an oven."]
_CHUNKS = (
    "Documents over the context length are scored in chunks, and the best chunk counts; the header X-Roundhouse-Chunks "
    "then says how many chunks were scored."
)
component("ScoreBody", {**structs(ScoreBody)["ScoreBody"], "anyOf": [{"required": list(sides)} for sides in SIDES]})


def _score_endpoint(path: str, id_: str) -> Endpoint:
    return _route.endpoint(
        Endpoint(path, _score, Dialect.OPENAI),
        id=id_,
        summary="Scores of pairs (vLLM)",
        description="One text and any number, or pair by pair. `model` may be left out where there is one reranker. "
        + _CHUNKS,
        answer=SCORES,
        body=ScoreBody,
        examples={"pairs": {"model": "starter-rerank", "text_1": "what is a slot?", "text_2": _DOCUMENTS}},
    )


ENDPOINTS = [
    _route.endpoint(
        Endpoint("/v1/rerank", _jina, Dialect.JINA),
        id="rerank",
        summary="Rerank (Jina)",
        description=f"Fields of Cohere v1 and vLLM work too. {_CHUNKS}",
        answer=JINA_RANKING,
        body=JinaBody,
        examples={"documents": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS}},
    ),
    _route.endpoint(
        Endpoint("/v2/rerank", _cohere, Dialect.COHERE),
        id="rerankCohere",
        summary="Rerank (Cohere v2)",
        description=_CHUNKS,
        answer=COHERE_RANKING,
        body=CohereBody,
        errors=(*INFERENCE, 422),
        examples={"best": {"model": "starter-rerank", "query": "what is a slot?", "documents": _DOCUMENTS, "top_n": 1}},
    ),
    _route.endpoint(
        Endpoint("/rerank", _parse_tei_or_jina, Dialect.JINA, dialect_of=_tei_or_jina),
        id="rerankTei",
        summary="Rerank (Text Embeddings Inference, or Jina)",
        description="With `texts` the answer is TEI's, with `documents` Jina's.",
        answer=(TEI_RANKING, JINA_RANKING),
        body=(TeiBody, JinaBody),
        dialects=(Dialect.TEI, Dialect.JINA),
        parameters=("Prefer", "Model"),
        examples={"texts": {"query": "what is a slot?", "texts": _DOCUMENTS}},
    ),
    _score_endpoint("/score", "score"),
    _score_endpoint("/v1/score", "scoreV1"),
    _route.endpoint(
        Endpoint("/v1/ranking", _nim, Dialect.OPENAI),
        id="ranking",
        summary="Rerank (NVIDIA NIM)",
        description=f"The scores are logits. `model` may be left out where there is one reranker. {_CHUNKS}",
        answer=NIM_RANKING,
        body=NimBody,
        examples={
            "passages": {
                "model": "starter-rerank",
                "query": {"text": "what is a slot?"},
                "passages": [{"text": text} for text in _DOCUMENTS],
            }
        },
    ),
]
