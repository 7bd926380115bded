"""The OpenAPI 3.1 document, from FastAPI's paths and the route table."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from registry.recipes.definition import Recipe
from runtime.http.errors import Dialect
from runtime.http.middleware import context_of
from runtime.http.route import Route
from runtime.http.routes import ROUTES
from runtime.http.schema import (
    COMPONENTS,
    ERROR_SCHEMAS,
    GUARD,
    GUARD_BODY,
    HEADERS,
    JSON,
    PARAMETERS,
    Json,
    content_of,
    error_responses,
    models,
    structs,
    types_in,
)

OPERATIONS: dict[tuple[str, str], Route] = {(route.method.lower(), route.documented_path): route for route in ROUTES}
"""Routes by method and path."""
TAGS = [
    {"name": "Chat", "description": "OpenAI's and Anthropic's chat APIs, answered by vLLM; `model` may be an adapter."},
    {"name": "Generate", "description": "Text Generation Inference's and LoRAX's, without a chat template."},
    {"name": "Ollama", "description": "Ollama's chat, text, embeddings and list of models."},
    {"name": "Embeddings", "description": "OpenAI's and Text Embeddings Inference's."},
    {"name": "Rerank", "description": "Jina's, Cohere's, Text Embeddings Inference's and vLLM's."},
    {"name": "Audio", "description": "OpenAI's transcription and translation."},
    {"name": "Models", "description": "What exists, where it is, and residency by hand."},
    {"name": "Files", "description": "Files, as OpenAI's: the input and the output of batches."},
    {"name": "Batches", "description": "Many requests in one file, answered within a day from idle capacity."},
    {"name": "Webhooks", "description": "URLs that are called when batches end, as OpenAI's, and their secrets."},
    {"name": "Adapters", "description": "LoRA adapters: register, versions, aliases, pins."},
    {"name": "Organization", "description": "Teams, keys, limits, usage and costs; OpenAI's administration too."},
    {"name": "Routers", "description": "One name in front of several targets: which one it chooses, and why."},
    {"name": "Operations", "description": "Health, metrics, status."},
    {"name": "Fleet", "description": "Several servers as one."},
]


def document(app: FastAPI, recipes: Sequence[Recipe]) -> None:
    """Serve our document at /openapi.json and /docs. Call it after all routes are registered.

    Examples use the server's own models if it has one for the task, so that they work as they are. Callers who may not
    see every model, such as those without a key where keys are required, get examples with the starter pack's.
    """
    app.openapi = cache(partial(build, app, recipes))  # type: ignore[method-assign]

    @cache  # encoding takes 10 ms, and needs no key
    def encoded(is_limited: bool) -> bytes:
        return bytes(JSONResponse(build(app, ()) if is_limited else app.openapi()).body)

    async def send(request: Request) -> Response:
        return Response(encoded(context_of(request.scope).caller.is_limited), media_type=JSON)

    path = app.openapi_url or ""
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != path]
    app.add_route(path, send, include_in_schema=False)


@cache
def schemas() -> dict[str, Json]:
    """All components: those written by hand, and the types of bodies and answers."""
    kinds: dict[type, None] = {}
    for route in ROUTES:
        for content in (route.answer, route.body, *(content for _, content in route.others.values())):
            kinds |= dict.fromkeys(types_in(content))
    typed = structs(*(kind for kind in kinds if issubclass(kind, msgspec.Struct)))
    typed |= models(*(kind for kind in kinds if issubclass(kind, BaseModel)))
    return {**dict(ERROR_SCHEMAS.values()), **typed, **COMPONENTS}


def build(app: FastAPI, recipes: Sequence[Recipe]) -> Json:
    """Build the document. Raises KeyError for a path that is not in the route table."""
    result = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=TAGS,
        openapi_version="3.1.0",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    rename = _own_models(recipes)
    for path, methods in result["paths"].items():
        for method, basis in methods.items():
            methods[method] = _operation(basis, OPERATIONS[method, path], rename)
    own = result.get("components", {})
    typed = own.get("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # invalid bodies get a 400 with our error body
        typed.pop(unused, None)
    result["security"] = [{}, {"key": []}]  # an open server needs none
    result["components"] = {
        **own,
        "schemas": {**typed, **schemas()},
        "headers": HEADERS,
        "parameters": PARAMETERS,
        "securitySchemes": {**own.get("securitySchemes", {}), "key": {"type": "http", "scheme": "bearer"}},
    }
    return result


def _operation(basis: Json, route: Route, rename: Callable[[Any], Any]) -> Json:
    """FastAPI's operation, completed from the route table."""
    merged: Json = {"operationId": route.id, "tags": [route.tag], "summary": route.summary}
    if "security" in basis:  # LIT_SERVER_API_KEY is set
        merged["security"] = basis["security"]
    if route.description:
        merged["description"] = route.description
    parameters = [_without_titles(parameter) for parameter in basis.get("parameters", [])]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in route.parameters]
    if parameters:
        merged["parameters"] = parameters
    if route.body is not None:
        content = content_of(route.body)
        if route.examples:
            content[JSON]["examples"] = {name: {"value": rename(value)} for name, value in route.examples.items()}
        merged["requestBody"] = {"required": True, "content": content}
    elif "requestBody" in basis:
        merged["requestBody"] = basis["requestBody"]
    guarded = tuple(dict.fromkeys((Dialect.OPENAI, *route.dialects)))  # errors about keys use the client's dialect
    names = HEADERS if route.is_inference else ["X-Request-Id"]
    merged["responses"] = {
        "200": {
            "description": "Done.",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
            "content": content_of(route.answer),
        },
        **{
            str(status): {"description": description, "content": content_of(content)}
            for status, (description, content) in route.others.items()
        },
        **error_responses(GUARD_BODY if "requestBody" in merged else GUARD, guarded),
        **error_responses(route.errors, route.dialects),
    }
    return merged


def _without_titles(parameter: Json) -> Json:
    """Drop the titles that FastAPI generates."""
    schema = {key: value for key, value in parameter["schema"].items() if key not in ("title", "description")}
    return {**parameter, "schema": schema}


def _own_models(recipes: Sequence[Recipe]) -> Callable[[Any], Any]:
    """Return a function that replaces starter models in examples by this server's first model of the task."""
    own: dict[str, str] = {}
    for recipe in recipes:
        own.setdefault(f"starter-{recipe.task.value}", recipe.id)
    here = {recipe.id for recipe in recipes}

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rename(inner) for key, inner in value.items()}
        return own.get(value, value) if isinstance(value, str) and value not in here else value

    return rename
