"""Rerank in four dialects over one engine call.

| path                | dialect                       | unknown fields | errors                 | no model named   |
|---------------------|-------------------------------|----------------|------------------------|------------------|
| /v1/rerank          | Jina (Cohere v1, vLLM)        | refused (400)  | `detail`, `error`      | refused          |
| /v2/rerank          | Cohere v2                     | refused (422)  | `message`              | refused          |
| /rerank             | TEI by `texts`, else Jina     | TEI: ignored   | `error`, `error_type`  | the only one     |
| /score, /v1/score   | vLLM                          | ignored        | OpenAI's               | the only one     |

`relevance_score` is the sigmoid of the model's logit. Documents over the context length are scored in chunks and the
best chunk counts, unless the client asks for truncation; answers say when that happened (X-Roundhouse-Chunks). Limits
of tokens and chunks cut queries and documents before that.
"""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Send

from models.messages import RerankRequest, RerankResult
from registry.errors import BadRequest, EngineFailed, RoundhouseError, Unfit
from registry.recipes.definition import Task
from runtime.gateway.core import Chosen, Gateway
from runtime.http.common import choose_or_only, convert, decode, unknown_fields
from runtime.http.errors import Dialect
from runtime.http.relay import Served, result, serving
from runtime.http.rerank import answers as results
from runtime.http.rerank.answers import Ranking
from runtime.http.rerank.bodies import CohereBody, JinaBody, ScoreBody, TeiBody
from runtime.http.rerank.score import by_query, pairs
from runtime.http.rerank.texts import context_only, document_texts, query_text, tightest
from runtime.http.working import Working, error_response, parse_object, read_body

Write = Callable[[Ranking], bytes]


class RerankEndpoints:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [
            ("/v1/rerank", self.jina, ["POST"]),
            ("/v2/rerank", self.cohere, ["POST"]),
            ("/rerank", self.tei_or_jina, ["POST"]),
            ("/score", self.score, ["POST"]),
            ("/v1/score", self.score, ["POST"]),
        ]

    async def jina(self, request: Request) -> Response:
        try:
            return self._jina(decode(await self._body(request), JinaBody), request.url.path)
        except RoundhouseError as error:
            return error_response(error, Dialect.JINA)

    async def cohere(self, request: Request) -> Response:
        try:
            data = parse_object(await self._body(request))
            if unknown := unknown_fields(data, CohereBody):
                raise Unfit(f"unknown field: '{unknown[0]}' is not a field of this request.", code="unknown_field")
            return self._cohere(convert(data, CohereBody))
        except RoundhouseError as error:
            return error_response(error, Dialect.COHERE)

    async def tei_or_jina(self, request: Request) -> Response:
        """The field `texts` tells TEI's clients from Jina's."""
        dialect = Dialect.JINA
        try:
            data = parse_object(await self._body(request))
            if "texts" not in data:
                return self._jina(convert(data, JinaBody), "/rerank")
            dialect = Dialect.TEI
            return self._tei(convert(data, TeiBody), request.query_params.get("model"))
        except RoundhouseError as error:
            return error_response(error, dialect)

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self.gateway.settings.max_json)

    def _jina(self, body: JinaBody, path: str) -> Response:
        wanted = RerankRequest(
            query=query_text(body.query),
            documents=document_texts(body.documents, fields=body.rank_fields),
            truncate=bool(body.truncate or body.truncation or context_only(body.truncate_prompt_tokens)),
            max_query_tokens=tightest(body.max_tokens_per_query, body.max_query_length),
            max_document_tokens=tightest(body.max_tokens_per_doc, body.max_doc_length),
            max_chunks=body.max_chunks_per_doc or 0,
        )
        chosen = self.gateway.choose(body.model, Task.RERANK)

        def write(ranking: Ranking) -> bytes:
            shown = None if body.return_documents is False else body.documents
            return results.jina(ranking, chosen.name, body.top_n, shown, raw=bool(body.raw_scores))

        return self._answer(chosen, path, wanted, write, Dialect.JINA)

    def _cohere(self, body: CohereBody) -> Response:
        if body.relevant_spans is not None and body.relevant_spans.get("mode") != "disabled":
            raise BadRequest(
                "Relevant spans cannot be had from this model. Leave 'relevant_spans' out.",
                param="relevant_spans",
                code="unsupported_value",
            )
        wanted = RerankRequest(
            query=query_text(body.query),
            documents=document_texts(body.documents, fields=body.rank_fields),
            max_document_tokens=body.max_tokens_per_doc or 0,
            max_chunks=body.max_chunks_per_doc or 0,
        )
        chosen = self.gateway.choose(body.model, Task.RERANK)

        def write(ranking: Ranking) -> bytes:
            return results.cohere(ranking, body.top_n, body.documents if body.return_documents else None)

        return self._answer(chosen, "/v2/rerank", wanted, write, Dialect.COHERE)

    def _tei(self, body: TeiBody, named: str | None) -> Response:
        if body.truncate and body.truncation_direction in ("Left", "left"):
            raise BadRequest(
                "Texts can be cut on the right only. Leave 'truncation_direction' out.",
                param="truncation_direction",
                code="unsupported_value",
            )
        query, texts = query_text(body.query), document_texts(body.texts, "texts")
        wanted = RerankRequest(query=query, documents=texts, truncate=bool(body.truncate))
        chosen = choose_or_only(self.gateway, body.model or named, Task.RERANK)

        def write(ranking: Ranking) -> bytes:
            return results.tei(ranking, body.texts if body.return_text else None, raw=bool(body.raw_scores))

        return self._answer(chosen, "/rerank", wanted, write, Dialect.TEI)

    def _answer(
        self,
        chosen: Chosen,
        path: str,
        wanted: RerankRequest,
        write: Write,
        dialect: Dialect,
    ) -> Response:
        async def work(_send: Send) -> Response:
            ranking, served = await self._rank(chosen, path, wanted)
            headers = {**served.headers(), **ranking.headers()}
            return Response(write(ranking), headers=headers, media_type="application/json")

        return Working(work, dialect)

    async def _rank(self, chosen: Chosen, path: str, wanted: RerankRequest) -> tuple[Ranking, Served]:
        async with serving(self.gateway, chosen, path, lambda: wanted) as (served, call):
            found = await result(served, call)
            if not isinstance(found, RerankResult):
                raise EngineFailed("The engine answered with something that is no ranking.")
            return Ranking(found, len(wanted.documents)), served

    async def score(self, request: Request) -> Response:
        path = request.url.path
        try:
            body = decode(await self._body(request), ScoreBody)
            wanted = pairs(body)
            truncate = context_only(body.truncate_prompt_tokens)
            chosen = choose_or_only(self.gateway, body.model, Task.RERANK)
        except RoundhouseError as error:
            return error_response(error)

        async def work(_send: Send) -> Response:
            headers: dict[str, str] = {}

            async def rank(query: str, documents: list[str]) -> Ranking:
                asked = RerankRequest(
                    query=query,
                    documents=documents,
                    truncate=truncate,
                    max_query_tokens=body.max_tokens_per_query or 0,
                    max_document_tokens=body.max_tokens_per_doc or 0,
                )
                ranking, served = await self._rank(chosen, path, asked)
                headers.update(served.headers())
                return ranking

            logits, tokens = await by_query(wanted, rank)
            answer = results.scores(logits, tokens, chosen.name, raw=body.use_activation is False)
            return Response(answer, headers=headers, media_type="application/json")

        return Working(work)
