"""The OpenAPI document equals that of commit 5e417445, apart from texts, new names, and the changes listed here.

The chat family is left out, because its schemas have since been generated from vLLM's own.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from runtime.http.openapi import document
from tests.unit.http.fakes import FakeGateway, application

BEFORE = Path(__file__).with_name("openapi-5e417445.json.gz")
USAGE = (
    "audio_speeches", "code_interpreter_sessions", "decisions", "file_search_calls", "images", "moderations",
    "vector_stores", "web_search_calls",
)  # fmt: skip
PROJECT = "/v1/organization/projects/{project}"
REMOVED_PATHS = {
    "/infinity/embeddings", "/infinity/health", "/infinity/rerank", "/v1/cluster/auth", "/v1/v2/rerank",
    *(f"/v1/organization/usage/{kind}" for kind in USAGE),
    f"{PROJECT}/rate_limits", f"{PROJECT}/rate_limits/{{rate_limit}}",
    f"{PROJECT}/spend_alerts", f"{PROJECT}/spend_alerts/{{alert}}",
}  # fmt: skip
STORED = "/v1/responses/{response_id}"
ADDED_PATHS = {
    STORED, f"{STORED}/input_items", f"{STORED}/cancel", "/v2/chat", "/v2/embed", "/v1/providers/{provider}",
    "/v1/embed", "/v1/signal", "/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content", "/v1/batches",
    "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel",
    "/v1/batch", "/v1/messages/batches", "/v1/messages/batches/{message_batch_id}",
    "/v1/batches/{batch_id}/deliveries", "/v1/batches/{batch_id}/redeliver", "/v1/webhook_event_types",
    "/v1/webhook_endpoints", "/v1/webhook_endpoints/{webhook_endpoint_id}",
    "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret", "/v1/webhook_endpoints/{webhook_endpoint_id}/test",
    "/v1/callback_secret", "/v1/callback_secret/rotate",
    "/v1/messages/batches/{message_batch_id}/cancel", "/v1/messages/batches/{message_batch_id}/results",
    "/v1/fleet", "/v1/fleet/nodes/{node}/drain", "/v1/fleet/nodes/{node}/undrain",
    "/v1/fleet/plan", "/v1/fleet/explain/{model}", "/v1/fleet/signal", "/v1/fleet/placements/{model}",
    "/v1/merged", "/v1/merged/{name}",
}  # fmt: skip
ADDED_HEADER = "X-Roundhouse-Replica"
ADDED_ANSWERS = {"/v1/route": "429"}
CHANGED_PROPERTIES = {
    "AddModelBody": "source", "RegisterRequest": "source", "OllamaChatBody": "think", "OllamaGenerateBody": "think",
    "OllamaOptions": "top_k", "JinaBody": "return_len", "EmbeddingsBody": "dimensions",
}  # fmt: skip
"""Sources may be strings or objects, Ollama's values are all accepted, Xinference's token counts are returned, and
Infinity's client may send 0 dimensions."""
ADDED_PROPERTIES = {
    "Adapter": {"notes"}, "Device": {"uuid", "fault"}, "Failure": {"at"}, "Health": {"degraded"},
    "JinaRanking": {"meta"},
    "Model": {"devices", "replicas"},
    "OllamaLogprob": {"bytes"}, "OllamaTopLogprob": {"bytes"},
    "Plan": {"devices", "replicas"}, "Status": {"devices", "degraded"},
}  # fmt: skip
REMOVED_SCHEMAS = {"AlertBody", "Channel", "InfinityEmbeddingsBody", "InfinityRanking", "RateBody"}
RENAMED_SCHEMAS = {"OllamaCalled": "OllamaCall", "OllamaShown": "OllamaModelInfo", "Replayed": "ReplayPoint"}
CHAT_SCHEMAS = {
    "AnthropicMessage", "AnthropicRequest", "ChatCompletion", "ChatCompletionRequest", "ChatMessage", "Completion",
    "CompletionRequest", "CountTokens", "CountTokensRequest", "DetokenizeRequest", "Detokenized", "ResponsesRequest",
    "ResponsesResponse", "TokenizeRequest", "Tokens",
}  # fmt: skip
CHANGED_SCHEMAS = {"AnthropicError", "OllamaEmbedBody", "OllamaEmbeddingsBody"}
"""Anthropic's errors have the request's id, and Ollama's embedding models are loaded by requests without text."""
LENIENT_SCHEMAS = {"CohereBody", "EmbeddingsBody", "JinaBody"}
"""These schemas forbade unknown fields, which are now left out with a warning."""
ROUTE_OF_A_REQUEST = "RequestRow"
"""Its `route` used to refer to another schema of the same name."""


def comparable(value: Any) -> Any:
    """Return the value without descriptions, and with today's names."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {
        key: comparable(item)
        for key, item in value.items()
        if key not in ("description", "summary", "title") or not isinstance(item, str)
    }
    if isinstance(reference := result.get("$ref"), str):
        start, _, name = reference.rpartition("/")
        result["$ref"] = f"{start}/{RENAMED_SCHEMAS.get(name, name)}"
    return result


def read() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the earlier paths and schemas."""
    before = json.loads(gzip.decompress(BEFORE.read_bytes()))
    schemas = {RENAMED_SCHEMAS.get(name, name): schema for name, schema in before["components"]["schemas"].items()}
    return comparable(before["paths"]), comparable(schemas)


def test_the_document_has_only_the_listed_changes(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path)
    app = application(gateway)
    document(app, gateway.recipes)
    now = comparable(json.loads(json.dumps(app.openapi())))
    paths, schemas = read()
    chat = {path for path, methods in paths.items() if "Chat" in methods.get("post", {}).get("tags", ())}
    assert now["paths"].keys() == paths.keys() - REMOVED_PATHS | ADDED_PATHS
    for path in now["paths"].keys() - chat - ADDED_PATHS:
        if path in ADDED_ANSWERS:
            now["paths"][path]["post"]["responses"].pop(ADDED_ANSWERS[path])
        for method, operation in now["paths"][path].items():
            if ADDED_HEADER not in json.dumps(paths[path].get(method, {})):
                for answer in operation["responses"].values():
                    answer.get("headers", {}).pop(ADDED_HEADER, None)
        assert now["paths"][path] == paths[path], path
    for name, schema in schemas.items():
        if name not in REMOVED_SCHEMAS | CHAT_SCHEMAS | CHANGED_SCHEMAS | {ROUTE_OF_A_REQUEST}:
            for added in ADDED_PROPERTIES.get(name, ()):
                today = now["components"]["schemas"][name]
                today["properties"].pop(added)
                today["required"] = [field for field in today.get("required", ()) if field != added]
            if name in LENIENT_SCHEMAS:
                assert schema.pop("additionalProperties") is False
            if name in CHANGED_PROPERTIES:
                for document_schema in (now["components"]["schemas"][name], schema):
                    document_schema["properties"].pop(CHANGED_PROPERTIES[name])
            assert now["components"]["schemas"][name] == schema, name
    assert not REMOVED_SCHEMAS & now["components"]["schemas"].keys()
