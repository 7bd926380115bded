"""Ollama's paths in the OpenAPI document. Schemas come from the structs that check bodies and write answers."""

from typing import Any

from runtime.http.errors import Dialect
from runtime.http.ollama.answers import OllamaChat, OllamaGeneration
from runtime.http.ollama.bodies import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaNameBody,
    OllamaOptions,
    OllamaPullBody,
)
from runtime.http.ollama.models import OllamaStatus, OllamaVersion
from runtime.http.ollama.vectors import OllamaVector, OllamaVectors
from runtime.http.ollama.views import OllamaLoaded, OllamaModelInfo, OllamaTags
from runtime.http.openapi_parts import MANAGEMENT, Json, Operation, Operations, json_of, model_call, ref, structs

TAG = "Ollama"
OLLAMA = (Dialect.OLLAMA,)
_CHANGING = (*MANAGEMENT, 409, 413)
_STRUCTS = structs(
    OllamaChatBody, OllamaGenerateBody, OllamaEmbedBody, OllamaEmbeddingsBody, OllamaNameBody, OllamaPullBody,
    OllamaChat, OllamaGeneration, OllamaVectors, OllamaVector, OllamaTags, OllamaLoaded, OllamaModelInfo, OllamaStatus,
    OllamaVersion, OllamaOptions,
)  # fmt: skip
_OWN = {name: name if name.startswith("Ollama") else f"Ollama{name}" for name in _STRUCTS}
"""Names of schemas: those of parts, such as a message's, may be other families' too."""


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{_OWN[str(inner).rpartition('/')[2]]}" if key == "$ref" else _renamed(inner)
            for key, inner in value.items()
        }
    return [_renamed(item) for item in value] if isinstance(value, list) else value


SCHEMAS: dict[str, Json] = {_OWN[name]: _renamed(schema) for name, schema in _STRUCTS.items()}
for _name in ("OllamaChatBody", "OllamaGenerateBody", "OllamaEmbedBody", "OllamaEmbeddingsBody"):
    SCHEMAS[_name]["properties"]["options"] = {"anyOf": [ref("OllamaOptions"), {"type": "null"}]}

_CHAT: Json = {"model": "starter-chat", "messages": [{"role": "user", "content": "turn on the lamp"}]}


def _lines(schema: str) -> Json:
    return {"application/x-ndjson": {**ref(schema)}, **json_of(schema)}


def _asking(id_: str, summary: str, answers: Json, body: str, examples: Json, description: str = "") -> Operation:
    return model_call(id_, TAG, summary, answers, description, json_of(body), examples, dialects=OLLAMA)


def _managing(id_: str, summary: str, answers: Json, body: str = "", description: str = "") -> Operation:
    bodies, errors = (json_of(body), _CHANGING) if body else ({}, ())
    return Operation(id_, TAG, summary, answers, description, bodies, errors=errors, dialects=OLLAMA)


OPERATIONS: Operations = {
    ("post", "/api/chat"): _asking(
        "ollamaChat", "Chat", _lines("OllamaChat"), "OllamaChatBody",
        {"stream": _CHAT, "adapter": {**_CHAT, "model": "uppercase", "stream": False, "options": {"temperature": 0}}},
        "Lines of JSON; one object with `stream: false`. What a model cannot do is refused: tools, thinking, images.",
    ),
    ("post", "/api/generate"): _asking(
        "ollamaGenerate", "Generate text", _lines("OllamaGeneration"), "OllamaGenerateBody",
        {"prompt": {"model": "starter-chat", "prompt": "what is a slot?"}},
        "The prompt is one message of a chat; with `raw: true` it is given to the model as it is.",
    ),
    ("post", "/api/embed"): _asking(
        "ollamaEmbed", "Embeddings", json_of("OllamaVectors"), "OllamaEmbedBody",
        {"texts": {"model": "starter-embed", "input": ["a warm kitchen", "a cold cellar"]}},
    ),
    ("post", "/api/embeddings"): _asking(
        "ollamaEmbeddings", "One embedding (older)", json_of("OllamaVector"), "OllamaEmbeddingsBody",
        {"text": {"model": "starter-embed", "prompt": "a warm kitchen"}},
    ),
    ("get", "/api/tags"): _managing("ollamaTags", "List models and adapters", json_of("OllamaTags")),
    ("get", "/api/ps"): _managing("ollamaPs", "Models in memory", json_of("OllamaLoaded")),
    ("post", "/api/show"): _managing("ollamaShow", "Show a model", json_of("OllamaShown"), "OllamaNameBody"),
    ("get", "/api/version"): _managing("ollamaVersion", "Version of the interface", json_of("OllamaVersion")),
    ("post", "/api/pull"): _managing(
        "ollamaPull", "Bring a model of a hub", _lines("OllamaStatus"), "OllamaPullBody"
    ),
    ("delete", "/api/delete"): _managing(
        "ollamaDelete", "Remove an adapter or an added model", json_of("OllamaStatus"), "OllamaNameBody"
    ),
}  # fmt: skip
