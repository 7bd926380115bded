"""Embeddings: OpenAI's /v1/embeddings and /embed of Text Embeddings Inference.

| vendor | errors                  | no model named            |
|--------|-------------------------|---------------------------|
| OpenAI | OpenAI's                | refused (400)             |
| TEI    | `error`, `error_type`   | the only embedding model  |

Unknown fields are ignored with a warning, unless they would have changed the vectors.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from models.messages import EmbedRequest, Event
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import decode_known, refuse_fields
from runtime.http.dialect import Endpoint, ParsedRequest, Parts, whole_answer
from runtime.http.embeddings.bodies import (
    CHANGING,
    DEFAULTS,
    EMBEDDINGS,
    INSTEAD,
    VECTORS,
    EmbedBody,
    EmbeddingsBody,
    Matrix,
    openai_json,
    received,
    tei_json,
)
from runtime.http.errors import Dialect
from runtime.http.route import RouteGroup

Write = Callable[[Matrix, str, int], Awaitable[bytes]]
"""Builds the body from vectors, the model's name and the number of tokens."""


def _parsed_request(
    request: EmbedRequest,
    write: Write,
    model_ref: ModelRef,
    dialect: Dialect,
    renamed: Mapping[str, str],
    unknown: Sequence[str],
) -> ParsedRequest:
    left_out = refuse_fields(unknown, CHANGING, INSTEAD[dialect])

    async def render(target: Target, events: AsyncIterator[Event]) -> Parts:
        vectors, tokens = await received(events, len(request.inputs))
        async for part in whole_answer(await write(vectors, target.requested, tokens)):
            yield part

    return ParsedRequest(model_ref, lambda _: [request], render, dialect, renamed=renamed, left_out=left_out)


def _parse_openai(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    body, unknown = decode_known(data, EmbeddingsBody, DEFAULTS, quoted_values=True)

    async def write(vectors: Matrix, model: str, tokens: int) -> bytes:
        return await openai_json(vectors, model, tokens, as_base64=body.encoding_format == "base64")

    model_ref = ModelRef(Task.EMBED, body.model)
    return _parsed_request(body.request(), write, model_ref, Dialect.OPENAI, {"prompt_name": "input_type"}, unknown)


def _parse_tei(data: bytes, query: Mapping[str, str]) -> ParsedRequest:
    body, unknown = decode_known(data, EmbedBody, DEFAULTS, quoted_values=True)

    async def write(vectors: Matrix, _model: str, _tokens: int) -> bytes:
        return await tei_json(vectors)

    model_ref = ModelRef(Task.EMBED, body.model or query.get("model"), optional=True)
    return _parsed_request(body.request(), write, model_ref, Dialect.TEI, {"input": "inputs"}, unknown)


# --- paths -----------------------------------------------------------------------------------------------------------
_route = RouteGroup("Embeddings")
_TEXTS = ["a warm kitchen", "a cold cellar"]
ENDPOINTS = [
    _route.endpoint(
        Endpoint("/v1/embeddings", _parse_openai, Dialect.OPENAI),
        id="createEmbeddings",
        summary="Embeddings (OpenAI)",
        answer=EMBEDDINGS,
        body=EmbeddingsBody,
        examples={
            "texts": {"model": "starter-embed", "input": _TEXTS},
            "base64": {"model": "starter-embed", "input": "a warm kitchen", "encoding_format": "base64"},
        },
    ),
    _route.endpoint(
        Endpoint("/embed", _parse_tei, Dialect.TEI),
        id="embed",
        summary="Embeddings (Text Embeddings Inference)",
        description="`model` may be left out where there is one embedding model.",
        answer=VECTORS,
        body=EmbedBody,
        parameters=("Prefer", "Model"),
        examples={"texts": {"inputs": _TEXTS}},
    ),
]
