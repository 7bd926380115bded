"""Embeddings: OpenAI's /v1/embeddings and /embed of Text Embeddings Inference.

| vendor | unknown fields | errors                  | no model named            |
|--------|----------------|-------------------------|---------------------------|
| OpenAI | refused (400)  | OpenAI's                | refused (400)             |
| TEI    | ignored        | `error`, `error_type`   | the only embedding model  |
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Send

from models.messages import EmbedRequest, EmbedResult
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.definition import Task
from runtime.gateway.core import Chosen, Gateway
from runtime.http.common import choose_or_only, decode
from runtime.http.embeddings.answers import Matrix, matrix, openai_json, tei_json
from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody
from runtime.http.errors import Dialect
from runtime.http.relay import result, serving
from runtime.http.working import Working, error_response, read_body

Write = Callable[[Matrix, int], Awaitable[bytes]]
"""Vectors and the number of tokens to a body."""


class EmbeddingEndpoints:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [("/v1/embeddings", self.openai, ["POST"]), ("/embed", self.tei, ["POST"])]

    async def openai(self, request: Request) -> Response:
        try:
            body = decode(await read_body(request, self.gateway.settings.max_json), EmbeddingsBody)
            chosen, wanted = self.gateway.choose(body.model, Task.EMBED), body.request()
        except RoundhouseError as error:
            return error_response(error)

        async def write(vectors: Matrix, tokens: int) -> bytes:
            return await openai_json(vectors, chosen.name, tokens, as_base64=body.encoding_format == "base64")

        return self._answer(chosen, "/v1/embeddings", wanted, write, Dialect.OPENAI)

    async def tei(self, request: Request) -> Response:
        try:
            body = decode(await read_body(request, self.gateway.settings.max_json), EmbedBody)
            name = body.model or request.query_params.get("model")
            chosen, wanted = choose_or_only(self.gateway, name, Task.EMBED), body.request()
        except RoundhouseError as error:
            return error_response(error, Dialect.TEI)

        async def write(vectors: Matrix, _tokens: int) -> bytes:
            return await tei_json(vectors)

        return self._answer(chosen, "/embed", wanted, write, Dialect.TEI)

    def _answer(self, chosen: Chosen, path: str, wanted: EmbedRequest, write: Write, dialect: Dialect) -> Response:
        # The engine names fields of its own request; the client's are called otherwise in each dialect.
        params = {"prompt_name": "input_type"} if dialect is Dialect.OPENAI else {"input": "inputs"}

        async def work(_send: Send) -> Response:
            try:
                async with serving(self.gateway, chosen, path, lambda: wanted) as (served, call):
                    found = await result(served, call)
                    if not isinstance(found, EmbedResult):
                        raise EngineFailed("The engine answered with something that is no embedding.")
                    vectors = matrix(found, len(wanted.inputs))
            except RoundhouseError as error:
                error.param = params.get(error.param or "", error.param)
                raise
            body = await write(vectors, sum(found.tokens))
            return Response(body, headers=served.headers(), media_type="application/json")

        return Working(work, dialect)
