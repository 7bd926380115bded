"""Embeddings in the OpenAPI document."""

from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody, InfinityEmbeddingsBody
from runtime.http.errors import Dialect
from runtime.http.openapi_parts import (
    COUNT,
    LOADING,
    NUMBER,
    STRING,
    Json,
    Operation,
    answer,
    array,
    either,
    json_body,
    record,
    structs,
)

SCHEMAS: dict[str, Json] = {
    **structs(EmbeddingsBody, InfinityEmbeddingsBody, EmbedBody),
    "Embeddings": record(
        {
            "object": {"const": "list"},
            "data": array(
                record(
                    {
                        "object": {"const": "embedding"},
                        "index": COUNT,
                        "embedding": either(array(NUMBER), {**STRING, "contentEncoding": "base64"}),
                    }
                )
            ),
            "model": STRING,
            "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "Vectors": array(array(NUMBER)),
}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("post", "/v1/embeddings"): Operation(
        "createEmbeddings", "Embeddings", "Embeddings (OpenAI)", answer("Embeddings"),
        body=json_body("EmbeddingsBody"), parameters=("Prefer",), others=LOADING,
        examples={
            "texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]},
            "base64": {"model": "starter-embed", "input": "a warm kitchen", "encoding_format": "base64"},
        },
    ),
    ("post", "/infinity/embeddings"): Operation(
        "embedInfinity", "Embeddings", "Embeddings (Infinity)", answer("Embeddings"),
        body=json_body("InfinityEmbeddingsBody"), parameters=("Prefer",), others=LOADING,
        examples={"texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]}},
    ),
    ("post", "/embed"): Operation(
        "embed", "Embeddings", "Embeddings (Text Embeddings Inference)", answer("Vectors"),
        body=json_body("EmbedBody"), parameters=("Prefer", "Model"), others=LOADING, dialects=(Dialect.TEI,),
        description="`model` may be left out where there is one embedding model.",
        examples={"texts": {"inputs": ["a warm kitchen", "a cold cellar"]}},
    ),
}  # fmt: skip
