"""Embeddings in the OpenAPI document."""

from runtime.http.embeddings.bodies import EmbedBody, EmbeddingsBody, InfinityEmbeddingsBody
from runtime.http.errors import Dialect
from runtime.http.openapi_parts import (
    COUNT,
    NUMBER,
    STRING,
    Json,
    Operations,
    array,
    either,
    json_of,
    model_call,
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

OPERATIONS: Operations = {
    ("post", "/v1/embeddings"): model_call(
        "createEmbeddings", "Embeddings", "Embeddings (OpenAI)", json_of("Embeddings"), body=json_of("EmbeddingsBody"),
        examples={
            "texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]},
            "base64": {"model": "starter-embed", "input": "a warm kitchen", "encoding_format": "base64"},
        },
    ),
    ("post", "/infinity/embeddings"): model_call(
        "embedInfinity", "Embeddings", "Embeddings (Infinity)", json_of("Embeddings"),
        body=json_of("InfinityEmbeddingsBody"),
        examples={"texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]}},
    ),
    ("post", "/embed"): model_call(
        "embed", "Embeddings", "Embeddings (Text Embeddings Inference)", json_of("Vectors"),
        body=json_of("EmbedBody"), parameters=("Prefer", "Model"), dialects=(Dialect.TEI,),
        description="`model` may be left out where there is one embedding model.",
        examples={"texts": {"inputs": ["a warm kitchen", "a cold cellar"]}},
    ),
}  # fmt: skip
