"""Embeddings as Ollama has them: /api/embed for one or many texts, and the older /api/embeddings for one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from models.messages import EmbedRequest, EmbedResult, Event
from registry.errors import EngineFailed
from registry.recipes.definition import Task
from runtime.gateway.backend import Call, Target
from runtime.gateway.names import Wanted
from runtime.http.bodies import decode
from runtime.http.dialect import Endpoint, Parsed, Parts, whole
from runtime.http.embeddings.answers import matrix, tei_json
from runtime.http.embeddings.bodies import listed
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


@dataclass(slots=True)
class OllamaEmbedding:
    model: str
    request: EmbedRequest
    is_old: bool
    watch: Timings = field(default_factory=Timings)
    dialect: Dialect = Dialect.OLLAMA
    renamed: Mapping[str, str] = field(default_factory=dict)
    stream: bool = False

    @property
    def wanted(self) -> Wanted:
        return Wanted(Task.EMBED, self.model)

    def calls(self, context_length: int | None) -> Sequence[Call]:
        self.watch.turn = self.watch.clock()
        return [self.request] if self.request.inputs else []

    async def render(self, target: Target, events: AsyncIterator[Event]) -> Parts:
        found = [event async for event in events if isinstance(event, EmbedResult)]
        if len(found) != bool(self.request.inputs):
            raise EngineFailed("The engine answered with something that is no embedding.")
        rows, tokens = b"[]", 0
        if found:
            rows, tokens = await tei_json(matrix(found[0], len(self.request.inputs))), sum(found[0].tokens)
        async for part in whole(self._old(rows) if self.is_old else self._new(rows, tokens)):
            yield part

    def _old(self, rows: bytes) -> bytes:
        return b'{"embedding":%s}' % (rows[1:-1] or b"[]")

    def _new(self, rows: bytes, tokens: int) -> bytes:
        took = self.watch.durations()
        model = msgspec.json.encode(self.model)
        times = (took["total_duration"], took["load_duration"], tokens)
        shape = b'{"model":%s,"embeddings":%s,"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}'
        return shape % (model, rows, *times)


def _embed(body: bytes, _query: Mapping[str, str]) -> Parsed:
    asked = decode(body, OllamaEmbedBody)
    texts: str | list[str | int | list[int]] = asked.input if isinstance(asked.input, str) else [*asked.input]
    inputs = listed(texts, "input") if texts else []  # nothing to embed: the model is loaded
    request = EmbedRequest(inputs=inputs, dimensions=asked.dimensions, truncate=asked.truncate is not False)
    return OllamaEmbedding(asked.model, request, is_old=False)


def _embeddings(body: bytes, _query: Mapping[str, str]) -> Parsed:
    asked = decode(body, OllamaEmbeddingsBody)
    request = EmbedRequest(inputs=[asked.prompt] if asked.prompt else [], truncate=True)
    return OllamaEmbedding(asked.model, request, is_old=True)


ENDPOINTS = [Endpoint("/api/embed", _embed, Dialect.OLLAMA), Endpoint("/api/embeddings", _embeddings, Dialect.OLLAMA)]
