"""The OpenAPI 3.1 document. FastAPI gives paths and typed parameters; the tables beside this file give the rest.

A path that is in no table, or a table's entry without its path, is an error when the document is built: what is served
and what is documented cannot drift apart.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from registry.recipes.definition import Recipe
from runtime.http.admin import openapi as management
from runtime.http.audio import openapi as audio
from runtime.http.chat import openapi as chat
from runtime.http.embeddings import openapi as embeddings
from runtime.http.errors import Dialect
from runtime.http.ollama import openapi as ollama
from runtime.http.openapi_parts import (
    ERROR_SCHEMAS,
    GUARD,
    GUARD_BODY,
    HEADERS,
    PARAMETERS,
    Json,
    Operation,
    Operations,
    error_responses,
)
from runtime.http.organization import openapi as organization
from runtime.http.rerank import openapi as rerank
from runtime.http.routing import openapi as routing
from runtime.http.text_generation import openapi as generate

_TABLES = (chat, generate, ollama, embeddings, rerank, audio, management, organization, routing)
OPERATIONS: Operations = {}
SCHEMAS: dict[str, Json] = dict(ERROR_SCHEMAS.values())
for _table in _TABLES:
    OPERATIONS |= _table.OPERATIONS
    SCHEMAS |= _table.SCHEMAS
TAGS = [
    {"name": "Chat", "description": "OpenAI's and Anthropic's chat APIs, answered by vLLM; `model` may be an adapter."},
    {"name": "Generate", "description": "Text Generation Inference's and LoRAX's, without a chat template."},
    {"name": "Ollama", "description": "Ollama's chat, text, embeddings and list of models."},
    {"name": "Embeddings", "description": "OpenAI's and Text Embeddings Inference's."},
    {"name": "Rerank", "description": "Jina's, Cohere's, Text Embeddings Inference's and vLLM's."},
    {"name": "Audio", "description": "OpenAI's transcription and translation."},
    {"name": "Models", "description": "What exists, where it is, and residency by hand."},
    {"name": "Adapters", "description": "LoRA adapters: register, versions, aliases, pins."},
    {"name": "Organization", "description": "Teams, keys, limits, usage and costs; OpenAI's administration too."},
    {"name": "Routers", "description": "One name in front of several targets: whom it chooses, and why."},
    {"name": "Operations", "description": "Health, metrics, status."},
]


def document(app: FastAPI, recipes: Sequence[Recipe]) -> None:
    """Make `app` serve our document at /openapi.json and /docs. Call it once all routes are there.

    Examples name the server's own models where there is one for the task, so that they can be tried at once.
    """
    app.openapi = cache(partial(build, app, recipes))  # type: ignore[method-assign]


def build(app: FastAPI, recipes: Sequence[Recipe]) -> Json:
    """The document as a dictionary. Raises KeyError for paths without an entry, or entries without a path."""
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=TAGS,
        openapi_version="3.1.0",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    served = {(method, path) for path, methods in found["paths"].items() for method in methods}
    if served != set(OPERATIONS):
        raise KeyError(f"not documented: {sorted(served - set(OPERATIONS))}, not there: {set(OPERATIONS) - served}")
    rename = _own_models(recipes)
    for path, methods in found["paths"].items():
        for method, basis in methods.items():
            methods[method] = _merged(basis, OPERATIONS[method, path], rename)
    own = found.get("components", {})
    typed = own.get("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # faults of typed bodies are 400 in our error shape
        typed.pop(unused, None)
    ways = {**own.get("securitySchemes", {}), "key": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{}, {"key": []}]  # an open server asks for none
    found["components"] = {
        **own, "schemas": {**typed, **SCHEMAS}, "headers": HEADERS, "parameters": PARAMETERS, "securitySchemes": ways,
    }  # fmt: skip
    return found


def _merged(basis: Json, entry: Operation, rename: Callable[[Any], Any]) -> Json:
    """FastAPI's operation with what the table says of it."""
    merged: Json = {"operationId": entry.id, "tags": [entry.tag], "summary": entry.summary}
    if "security" in basis:  # LIT_SERVER_API_KEY is set
        merged["security"] = basis["security"]
    if text := entry.description or basis.get("description", ""):
        merged["description"] = text
    parameters = [_flat(parameter) for parameter in basis.get("parameters", [])]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in entry.parameters]
    if parameters:
        merged["parameters"] = parameters
    if entry.body:
        examples = {name: {"value": rename(value)} for name, value in entry.examples.items()}
        merged["requestBody"] = {
            "required": True,
            "content": {
                media: {"schema": schema, **({"examples": examples} if examples and "json" in media else {})}
                for media, schema in entry.body.items()
            },
        }
    elif "requestBody" in basis:
        merged["requestBody"] = basis["requestBody"]
    names = HEADERS if entry.is_inference else ["X-Request-Id"]
    guarded = tuple(dict.fromkeys((Dialect.OPENAI, *entry.dialects)))  # keys are asked for in the client's dialect
    merged["responses"] = {
        "200": {
            "description": "Done.",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
            "content": {media: {"schema": schema} for media, schema in entry.answers.items()},
        },
        **entry.others,
        **error_responses(GUARD_BODY if "requestBody" in merged else GUARD, guarded),
        **error_responses(entry.errors, entry.dialects),
    }
    return merged


def _flat(parameter: Json) -> Json:
    """Without the titles that FastAPI makes up."""
    schema = {key: value for key, value in parameter["schema"].items() if key not in ("title", "description")}
    return {**parameter, "schema": schema}


def _own_models(recipes: Sequence[Recipe]) -> Callable[[Any], Any]:
    """Puts this server's first model of a task where an example names the starter pack's, if that is not here."""
    own: dict[str, str] = {}
    for recipe in recipes:
        own.setdefault(f"starter-{recipe.task.value}", recipe.id)
    here = {recipe.id for recipe in recipes}

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rename(inner) for key, inner in value.items()}
        return own.get(value, value) if isinstance(value, str) and value not in here else value

    return rename
