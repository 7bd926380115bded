"""Schemas of the document: shorthands, components, errors, shared headers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from registry.errors import Refusal
from runtime.http.errors import Dialect

Json = dict[str, Any]
JSON = "application/json"

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}
NULL: Json = {"type": "null"}
COUNT: Json = {"type": "integer", "minimum": 0}
ANY_OBJECT: Json = {"type": "object", "additionalProperties": True}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def either(*schemas: Json, **more: Any) -> Json:
    return {"anyOf": list(schemas), **more}


def nullable(schema: Json) -> Json:
    return either(schema, NULL)


def one_of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def record(properties: Mapping[str, Json], required: Sequence[str] | None = None, *, open_: bool = True) -> Json:
    """An object. `required`: None means all. `open_`: whether other fields are allowed."""
    names = list(properties) if required is None else list(required)
    schema: Json = {"type": "object", "properties": dict(properties), "additionalProperties": open_}
    return {**schema, "required": names} if names else schema


def structs(*kinds: Any) -> dict[str, Json]:
    """Schemas of msgspec structs and of all types in them. Names of views lose their suffix."""
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    text = msgspec.json.encode(schemas).replace(b'View"', b'"')
    return cast(dict[str, Json], msgspec.json.decode(text))


def models(*kinds: type[BaseModel]) -> dict[str, Json]:
    """Schemas of pydantic models and of all types in them."""
    _, whole = models_json_schema([(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}")
    return cast(dict[str, Json], whole["$defs"])


TEXT: Json = {"text/plain": STRING}


# --- errors --------------------------------------------------------------------------------------------------------
WORDS: dict[int, str] = {
    400: "The body or a parameter is wrong; the message says what to send instead.",
    401: "No key, or one that is wrong, expired or revoked.",
    403: "The key may not do this; or this server does not answer to that host, or to pages of that origin.",
    404: "There is no such model, adapter, version or alias; the message lists what exists.",
    408: "The body did not arrive in time.",
    409: "The present state does not allow it.",
    413: "The body is over this server's limit.",
    415: "The body is not JSON, or has not its content type.",
    422: "It was read and refused; every fault is listed.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "The engine broke while it answered.",
    502: "What answers elsewhere did not, or not as it should.",
    503: "Not now: loading, draining or restarting; Retry-After says when.",
    504: "The request's own deadline has passed, or what answers elsewhere was silent for too long.",
    507: "The disk, or the space for files, is full; nothing was stored.",
}
_ERROR = record(
    {
        "message": STRING,
        "type": STRING,
        "param": nullable(STRING),
        "code": nullable(STRING),
        "faults": array(STRING, description="Every reason why an adapter was refused."),
        "limits": array(structs(Refusal)["Refusal"], description="Every limit that is exhausted."),
        "predicted_wait_seconds": {**NUMBER, "description": "With deadline_unreachable: seconds until it would start."},
    },
    ["message", "type"],
)
ERROR_SCHEMAS: dict[Dialect, tuple[str, Json]] = {
    Dialect.OPENAI: ("Error", record({"error": _ERROR})),
    Dialect.ANTHROPIC: (
        "AnthropicError",
        record(
            {
                "type": {"const": "error"},
                "error": record({"type": STRING, "message": STRING}),
                "request_id": {**nullable(STRING), "description": "As in the header X-Request-Id."},
            }
        ),
    ),
    Dialect.JINA: ("JinaError", record({"detail": STRING, "error": _ERROR})),
    Dialect.COHERE: ("CohereError", record({"message": STRING})),
    Dialect.TEI: ("TeiError", record({"error": STRING, "error_type": STRING})),
    Dialect.TGI: ("TgiError", record({"error": STRING, "error_type": STRING})),
    Dialect.OLLAMA: ("OllamaError", record({"error": STRING})),
}
_RETRY: Json = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}


def error_responses(statuses: Sequence[int], dialects: Sequence[Dialect]) -> Json:
    """Responses by status. If a path has several dialects, the body may be any of theirs."""
    refs = [ref(ERROR_SCHEMAS[dialect][0]) for dialect in dialects]
    schema = refs[0] if len(refs) == 1 else either(*refs)
    return {
        str(status): {
            "description": WORDS[status],
            "content": {"application/json": {"schema": schema}},
            **({"headers": _RETRY} if status in (429, 503) else {}),
        }
        for status in statuses
    }


# --- statuses, headers, parameters -----------------------------------------------------------------------------------
INFERENCE = (400, 404, 408, 413, 429, 500, 502, 503, 504)
MANAGEMENT = (400, 404)
GUARD, GUARD_BODY = (401, 403), (401, 403, 408, 413, 415)
"""Errors of `runtime.http.guard` for every operation, and for those with a body."""
CONFLICT = (*MANAGEMENT, 409)

HEADERS: Json = {
    "X-Request-Id": {"description": "The client's, if sane, else a new one.", "schema": STRING},
    "X-Roundhouse-Model": {"description": "Model and revision that answered: `id@revision`.", "schema": STRING},
    "X-Roundhouse-Warning": {
        "description": "What was done otherwise than asked for: `max_tokens` that the context has no room for was cut.",
        "schema": STRING,
    },
    "X-Roundhouse-Adapter": {
        "description": "Adapter that answered, where one did: `name@sha256:…`.",
        "schema": STRING,
    },
    "X-Roundhouse-Replica": {
        "description": "Replica that answered, and why it, where a model has several: `number reason`.",
        "schema": STRING,
    },
    "X-Roundhouse-Route": {
        "description": "Where a router chose: `router@version target reason score`.",
        "schema": STRING,
    },
    "Server-Timing": {
        "description": "Milliseconds of waiting, of it for a load, and to the first byte.",
        "schema": STRING,
    },
}
PARAMETERS: Json = {
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "description": "While the model loads: `respond-async` answers 202 at once, `wait=N` waits N seconds at most.",
        "schema": STRING,
        "examples": {"async": {"value": "respond-async"}, "wait": {"value": "wait=10"}},
    },
    "Progress": {
        "name": "X-Roundhouse-Progress",
        "in": "header",
        "description": "`sse`: a stream starts at once, and comments in it tell the progress of the load.",
        "schema": STRING,
    },
    "Model": {
        "name": "model",
        "in": "query",
        "description": "The model, for clients whose body has no field for it.",
        "schema": STRING,
    },
}


# --- what a route takes and answers ----------------------------------------------------------------------------------
Schema = type | str | list[Any] | tuple[Any, ...] | Mapping[str, Any]
"""A struct or model, a component's name, [items] of an array, a tuple of alternatives, or JSON Schema."""
Content = Schema
"""A schema for JSON, or schemas by media type."""
STREAM: Json = {"text/event-stream": {"type": "string", "description": "Server-sent events, with `stream: true`."}}
COMPONENTS: dict[str, Json] = {}
"""Schemas that are written by hand."""


def component(name: str, schema: Json) -> str:
    """Register a schema without a type, and return its name for routes."""
    COMPONENTS[name] = schema
    return name


def schema_of(value: Schema) -> Json:
    """The JSON Schema of a body or answer. Names of views lose their suffix."""
    match value:
        case type():
            return ref(value.__name__.removesuffix("View"))
        case str():
            return ref(value)
        case list():
            return array(schema_of(value[0]))
        case tuple():
            return either(*map(schema_of, value))
    return dict(value)


def content_of(value: Content) -> Json:
    """OpenAPI's `content`: media types and their schemas."""
    return {media: {"schema": schema_of(schema)} for media, schema in _by_media(value).items()}


def types_in(value: Content | None) -> Iterator[type]:
    """The types that `value` refers to."""
    for schema in () if value is None else _by_media(value).values():
        if isinstance(schema, type):
            yield schema
        elif isinstance(schema, list | tuple):
            for part in schema:
                yield from types_in(part)


def _by_media(value: Content) -> Mapping[str, Schema]:
    return value if isinstance(value, Mapping) and any("/" in key for key in value) else {JSON: value}
