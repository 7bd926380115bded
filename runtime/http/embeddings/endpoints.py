"""Embeddings: OpenAI's /v1/embeddings and /embed of Text Embeddings Inference.

| vendor | unknown fields | errors                  | no model named            |
|--------|----------------|-------------------------|---------------------------|
| OpenAI | refused (400)  | OpenAI's                | refused (400)             |
| TEI    | ignored        | `error`, `error_type`   | the only embedding model  |
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from models.messages import EmbedRequest, EmbedResult, Event
from registry.errors import EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.backend import Call, Target
from runtime.gateway.names import Wanted
from runtime.http.bodies import decode
from runtime.http.dialect import Endpoint, Parsed, Parts, whole
from runtime.http.embeddings.answers import Matrix, matrix, openai_json, tei_json
from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody, InfinityEmbeddingsBody
from runtime.http.errors import Dialect

Write = Callable[[Matrix, str, int], Awaitable[bytes]]
"""Vectors, the model's name and the number of tokens to a body."""


@dataclass(frozen=True, slots=True)
class EmbedQuestion:
    request: EmbedRequest
    write: Write
    wanted: Wanted
    dialect: Dialect
    renamed: Mapping[str, str]
    stream: bool = False

    def calls(self, context_length: int | None) -> Sequence[Call]:
        return [self.request]

    async def render(self, target: Target, events: AsyncIterator[Event]) -> Parts:
        found = [event async for event in events if isinstance(event, EmbedResult)]
        if len(found) != 1:
            raise EngineFailed("The engine answered with something that is no embedding.")
        vectors = matrix(found[0], len(self.request.inputs))
        async for part in whole(await self.write(vectors, target.asked, sum(found[0].tokens))):
            yield part


def _openai(body: bytes, _query: Mapping[str, str]) -> Parsed:
    return _question(decode(body, EmbeddingsBody))


def _infinity(body: bytes, _query: Mapping[str, str]) -> Parsed:
    return _question(decode(body, InfinityEmbeddingsBody))


def _question(found: EmbeddingsBody) -> EmbedQuestion:
    async def write(vectors: Matrix, model: str, tokens: int) -> bytes:
        return await openai_json(vectors, model, tokens, as_base64=found.encoding_format == "base64")

    wanted = Wanted(Task.EMBED, found.model)
    return EmbedQuestion(found.request(), write, wanted, Dialect.OPENAI, {"prompt_name": "input_type"})


def _tei(body: bytes, query: Mapping[str, str]) -> Parsed:
    found = decode(body, EmbedBody)

    async def write(vectors: Matrix, _model: str, _tokens: int) -> bytes:
        return await tei_json(vectors)

    wanted = Wanted(Task.EMBED, found.model or query.get("model"), optional=True)
    return EmbedQuestion(found.request(), write, wanted, Dialect.TEI, {"input": "inputs"})


ENDPOINTS = [
    Endpoint("/v1/embeddings", _openai, Dialect.OPENAI),
    Endpoint("/infinity/embeddings", _infinity, Dialect.OPENAI),
    Endpoint("/embed", _tei, Dialect.TEI),
]
