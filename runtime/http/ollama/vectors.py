"""Embeddings as Ollama has them: /api/embed for one or many texts, and the older /api/embeddings for one."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec

from models.messages import EmbedRequest, EmbedResult, Event
from registry.errors import EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Call, Target
from runtime.http.bodies import decode
from runtime.http.dialect import Endpoint, ParsedRequest, Parts, whole_answer
from runtime.http.embeddings.answers import matrix, tei_json
from runtime.http.embeddings.bodies import input_list
from runtime.http.errors import Dialect
from runtime.http.ollama.answers import Timings
from runtime.http.ollama.bodies import OllamaEmbedBody, OllamaEmbeddingsBody


class OllamaVectors(msgspec.Struct):
    """The answer of /api/embed. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(msgspec.Struct):
    """The answer of /api/embeddings."""

    embedding: list[float]


def _parsed(model: str, request: EmbedRequest, write: Callable[[bytes, int, Timings], bytes]) -> ParsedRequest:
    """write: rows of vectors as JSON, tokens and times to a body. Without inputs the model is loaded, and no more."""
    watch = Timings()

    def calls(_: int | None) -> Sequence[Call]:
        watch.turn = watch.clock()
        return [request] if request.inputs else []

    async def render(_: Target, events: AsyncIterator[Event]) -> Parts:
        found = [event async for event in events if isinstance(event, EmbedResult)]
        if len(found) != bool(request.inputs):
            raise EngineFailed("The engine answered with something that is no embedding.")
        rows, tokens = b"[]", 0
        if found:
            rows, tokens = await tei_json(matrix(found[0], len(request.inputs))), sum(found[0].tokens)
        async for part in whole_answer(write(rows, tokens, watch)):
            yield part

    return ParsedRequest(ModelRef(Task.EMBED, model), calls, render, Dialect.OLLAMA)


def _embed(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body = decode(body, OllamaEmbedBody)
    texts: str | list[str | int | list[int]] = (
        ollama_body.input if isinstance(ollama_body.input, str) else [*ollama_body.input]
    )
    inputs = input_list(texts, "input") if texts else []  # nothing to embed: the model is loaded
    request = EmbedRequest(inputs=inputs, dimensions=ollama_body.dimensions, truncate=ollama_body.truncate is not False)

    def write(rows: bytes, tokens: int, watch: Timings) -> bytes:
        took = watch.durations()
        model = msgspec.json.encode(ollama_body.model)
        times = (took["total_duration"], took["load_duration"], tokens)
        shape = b'{"model":%s,"embeddings":%s,"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}'
        return shape % (model, rows, *times)

    return _parsed(ollama_body.model, request, write)


def _embeddings(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    ollama_body = decode(body, OllamaEmbeddingsBody)
    request = EmbedRequest(inputs=[ollama_body.prompt] if ollama_body.prompt else [], truncate=True)
    return _parsed(
        ollama_body.model, request, lambda rows, _tokens, _watch: b'{"embedding":%s}' % (rows[1:-1] or b"[]")
    )


ENDPOINTS = [Endpoint("/api/embed", _embed, Dialect.OLLAMA), Endpoint("/api/embeddings", _embeddings, Dialect.OLLAMA)]
