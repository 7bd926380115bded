"""Embeddings: OpenAI's /v1/embeddings and /embed of Text Embeddings Inference.

| vendor | unknown fields | errors                  | no model named            |
|--------|----------------|-------------------------|---------------------------|
| OpenAI | refused (400)  | OpenAI's                | refused (400)             |
| TEI    | ignored        | `error`, `error_type`   | the only embedding model  |
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from models.messages import EmbedRequest, EmbedResult, Event
from registry.errors import EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import decode
from runtime.http.dialect import Endpoint, ParsedRequest, Parts, whole_answer
from runtime.http.embeddings.answers import Matrix, matrix, openai_json, tei_json
from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody, InfinityEmbeddingsBody
from runtime.http.errors import Dialect

Write = Callable[[Matrix, str, int], Awaitable[bytes]]
"""Vectors, the model's name and the number of tokens to a body."""


def _parsed(
    request: EmbedRequest, write: Write, model_ref: ModelRef, dialect: Dialect, renamed: Mapping[str, str]
) -> ParsedRequest:
    async def render(target: Target, events: AsyncIterator[Event]) -> Parts:
        results = [event async for event in events if isinstance(event, EmbedResult)]
        if len(results) != 1:
            raise EngineFailed("The engine answered with something that is no embedding.")
        vectors = matrix(results[0], len(request.inputs))
        async for part in whole_answer(await write(vectors, target.requested, sum(results[0].tokens))):
            yield part

    return ParsedRequest(model_ref, lambda _: [request], render, dialect, renamed=renamed)


def _openai(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    return _parse_openai(decode(body, EmbeddingsBody))


def _infinity(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    return _parse_openai(decode(body, InfinityEmbeddingsBody))


def _parse_openai(body: EmbeddingsBody) -> ParsedRequest:
    async def write(vectors: Matrix, model: str, tokens: int) -> bytes:
        return await openai_json(vectors, model, tokens, as_base64=body.encoding_format == "base64")

    model_ref = ModelRef(Task.EMBED, body.model)
    return _parsed(body.request(), write, model_ref, Dialect.OPENAI, {"prompt_name": "input_type"})


def _tei(body: bytes, query: Mapping[str, str]) -> ParsedRequest:
    embed_body = decode(body, EmbedBody)

    async def write(vectors: Matrix, _model: str, _tokens: int) -> bytes:
        return await tei_json(vectors)

    model_ref = ModelRef(Task.EMBED, embed_body.model or query.get("model"), optional=True)
    return _parsed(embed_body.request(), write, model_ref, Dialect.TEI, {"input": "inputs"})


ENDPOINTS = [
    Endpoint("/v1/embeddings", _openai, Dialect.OPENAI),
    Endpoint("/infinity/embeddings", _infinity, Dialect.OPENAI),
    Endpoint("/embed", _tei, Dialect.TEI),
]
