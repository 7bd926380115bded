"""Our own interface in the OpenAPI document: models, adapters, operations."""

from adapters.types import Limits
from registry.names import ADAPTER
from registry.recipe import Task, Tier
from runtime.endpoints.openapi_parts import (
    BOOLEAN,
    COUNT,
    INTEGER,
    MANAGEMENT,
    NUMBER,
    STRING,
    Json,
    Operation,
    answer,
    array,
    either,
    json_body,
    nullable,
    one_of,
    record,
    ref,
)
from runtime.probes import MOST_BYTES
from runtime.residency.states import ModelState

_MODELS, _ADAPTERS, _OPERATIONS = "Models", "Adapters", "Operations"
_TASK = one_of(*(task.value for task in Task))
_TIER = one_of(*(tier.value for tier in Tier))
_DIGEST: Json = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_TAG: Json = {"type": "string", "pattern": "^v[1-9][0-9]*$"}
_FAULT = record({"message": STRING, "code": STRING})
_UPLOAD = f"A tar, tar.gz or zip with the adapter's files, at most {Limits().archive_bytes >> 30} GiB."

_VERSION: dict[str, Json] = {
    "version": _TAG,
    "digest": _DIGEST,
    "rank": INTEGER,
    "bytes": COUNT,
    "created": COUNT,
    "source": STRING,
}
_PROMPT: Json = {"type": "string", "minLength": 1, "maxLength": 4096}
_EXPECTED: Json = {"type": "string", "minLength": 1, "maxLength": MOST_BYTES}
_NAME: Json = {"type": "string", "pattern": ADAPTER.pattern.replace("\\Z", "$"), "examples": ["uppercase"]}
_SOURCE = either(
    record({"path": {**STRING, "description": "Absolute folder on the server."}}, open_=False),
    record({"hub": STRING, "revision": STRING}, open_=False),
)

SCHEMAS: dict[str, Json] = {
    "Model": record(
        {
            "id": STRING,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": STRING,
            "task": _TASK,
            "state": one_of(*(state.value for state in ModelState)),
            "tier": _TIER,
            "revision": STRING,
            "recipe_version": COUNT,
            "engine": STRING,
            "aliases": array(STRING),
            "context_length": nullable(COUNT),
            "pinned": BOOLEAN,
            "bytes": {**COUNT, "description": "On the device."},
            "host_bytes": {**COUNT, "description": "In host memory beside a GPU; 0 on a CPU."},
            "expected_bytes": COUNT,
            "expected_load_seconds": NUMBER,
            "can_sleep": {**BOOLEAN, "description": "Whether it would sleep rather than end, if host memory has room."},
            "expected_wake_seconds": nullable(NUMBER),
            "last_used": nullable({**NUMBER, "description": "Seconds since the epoch."}),
            "running": COUNT,
            "waiting": COUNT,
            "loads": COUNT,
            "wakes": COUNT,
            "deaths": COUNT,
            "progress": nullable(record({"phase": STRING, "percent": NUMBER, "detail": STRING})),
            "failure": nullable(_FAULT),
            "problem": nullable(STRING),
            "adapters": array(STRING),
            "description": STRING,
        }
    ),
    "AdapterCard": record(
        {
            "id": STRING,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": STRING,
            "root": STRING,
            "parent": {**STRING, "description": "The base model."},
            "task": _TASK,
            "digest": _DIGEST,
            "version": _TAG,
            "context_length": nullable(COUNT),
        }
    ),
    "ModelList": record({"object": {"const": "list"}, "data": array(either(ref("Model"), ref("AdapterCard")))}),
    "LoadStarted": record(
        {"object": {"const": "model.load"}, "model": STRING, "status_url": STRING, "expected_seconds": COUNT}
    ),
    "Plan": record(
        {
            "object": {"const": "plan"},
            "model": STRING,
            "verdict": one_of("resident", "load", "wake", "wait", "impossible"),
            "why": STRING,
            "bytes_needed": COUNT,
            "bytes_free": INTEGER,
            "budget_bytes": COUNT,
            "host": nullable(record({"bytes_needed": COUNT, "bytes_free": INTEGER, "budget_bytes": COUNT})),
            "victims": array(
                record({"model": STRING, "bytes": COUNT, "running": COUNT, "action": one_of("evict", "drain", "sleep")})
            ),
            "expected_seconds": NUMBER,
        }
    ),
    "Adapter": record(
        {
            "object": {"const": "adapter"},
            "name": STRING,
            "base": STRING,
            **_VERSION,
            "versions": array(record(_VERSION)),
            "aliases": {"type": "object", "additionalProperties": _TAG},
            "pinned": BOOLEAN,
            "tier": _TIER,
            "running": COUNT,
            "waiting": COUNT,
            "hits": COUNT,
            "misses": COUNT,
            "evictions": COUNT,
            "last_stage_seconds": nullable(NUMBER),
            "last_place_seconds": nullable(NUMBER),
            "last_used": nullable(NUMBER),
            "probe": nullable(
                record(
                    {
                        "prompt": STRING,
                        "expected": STRING,
                        "state": one_of("unchecked", "passed", "failed"),
                        "answered": nullable(STRING),
                        "checked_at": nullable({**NUMBER, "description": "Seconds since the epoch."}),
                    }
                )
            ),
        }
    ),
    "AdapterList": record({"object": {"const": "list"}, "data": array(ref("Adapter"))}),
    "AdapterCheck": record(
        {
            "object": {"const": "adapter.check"},
            "name": STRING,
            "base": STRING,
            "fit": {"const": True},
            "digest": _DIGEST,
            "rank": INTEGER,
            "bytes": COUNT,
            "notes": array(STRING),
        }
    ),
    "AdapterDeleted": record(
        {
            "object": {"const": "adapter.deleted"},
            "name": STRING,
            "base": STRING,
            "deleted": {"const": True},
            "digests": array(_DIGEST),
        }
    ),
    "RegisterRequest": record(
        {
            "name": _NAME,
            "base": {**STRING, "description": "Id or alias of the base model."},
            "source": _SOURCE,
            "alias": nullable({**STRING, "description": "Pointed at the new version."}),
            "probe": nullable(
                {
                    **record({"prompt": _PROMPT, "expected": _EXPECTED}, open_=False),
                    "description": "Asked after each commit to an engine; the answer must begin with `expected`.",
                }
            ),
        },
        ["name", "base", "source"],
        open_=False,
    ),
    "RegisterForm": record(
        {
            "name": _NAME,
            "base": STRING,
            "alias": {**STRING, "description": "Pointed at the new version."},
            "probe_prompt": _PROMPT,
            "probe_expected": _EXPECTED,
            "file": {"type": "string", "contentMediaType": "application/octet-stream", "description": _UPLOAD},
        },
        ["name", "base", "file"],
        open_=False,
    ),
    "Health": record({"status": STRING}),
    "Status": record(
        {
            "device": record({"name": STRING, "label": STRING, "budget_bytes": COUNT, "resident_bytes": COUNT}),
            "host": nullable(
                record({"total_bytes": COUNT, "budget_bytes": COUNT, "resident_bytes": COUNT, "free_bytes": INTEGER})
            ),
            "slots": record(
                {
                    "total": COUNT,
                    "free": COUNT,
                    "restarts": COUNT,
                    "prewarmed": array(record({"slot": COUNT, "engine": STRING, "bytes": COUNT})),
                }
            ),
            "waiting": COUNT,
            "uptime_seconds": NUMBER,
            "models": array(ref("Model")),
        }
    ),
}

_CONFLICT = (*MANAGEMENT, 409)
_LOAD = (*MANAGEMENT, 409, 429, 500, 503)
_REGISTER = (*MANAGEMENT, 408, 409, 413, 422, 500, 503)
_TEXT: Json = {"text/plain": STRING}


def _good(description: str, schema: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/v1/models"): Operation("listModels", _MODELS, "List models and adapters", answer("ModelList"), errors=()),
    ("get", "/v1/models/{model}"): Operation(
        "getModel", _MODELS, "Show a model or adapter",
        {"application/json": either(ref("Model"), ref("AdapterCard"))}, errors=MANAGEMENT,
    ),
    ("post", "/v1/models/{model}/load"): Operation(
        "loadModel", _MODELS, "Load a model", answer("Model"), errors=_LOAD,
        others={"202": _good("With `wait=false`: the load has begun; Location tells where to look.", "Model")},
    ),
    ("post", "/v1/models/{model}/unload"): Operation(
        "unloadModel", _MODELS, "Unload a model", answer("Model"), errors=(*_CONFLICT, 500, 503)
    ),
    ("post", "/v1/models/{model}/plan"): Operation(
        "planLoad", _MODELS, "What a load would do", answer("Plan"), errors=(*MANAGEMENT, 503)
    ),
    ("put", "/v1/models/{model}/pin"): Operation("pinModel", _MODELS, "Pin a model", answer("Model"), errors=_CONFLICT),
    ("delete", "/v1/models/{model}/pin"): Operation(
        "unpinModel", _MODELS, "Unpin a model", answer("Model"), errors=_CONFLICT
    ),
    ("get", "/v1/adapters"): Operation(
        "listAdapters", _ADAPTERS, "List adapters", answer("AdapterList"), errors=MANAGEMENT
    ),
    ("post", "/v1/adapters"): Operation(
        "registerAdapter", _ADAPTERS, "Register an adapter",
        {"application/json": either(ref("Adapter"), ref("AdapterCheck"))},
        body={**json_body("RegisterRequest"), "multipart/form-data": ref("RegisterForm")},
        description="A name that exists gets a new version; the same content again changes nothing (200). With "
        "`dry_run=true` it is only checked.",
        examples={
            "folder": {"name": "support", "base": "starter-chat", "source": {"path": "/srv/adapters/support"}},
            "hub": {"name": "support", "base": "starter-chat", "source": {"hub": "team/support", "revision": "main"}},
        },
        errors=_REGISTER, others={"201": _good("A new version.", "Adapter")},
    ),
    ("get", "/v1/adapters/{name}"): Operation(
        "getAdapter", _ADAPTERS, "Show an adapter", answer("Adapter"), errors=MANAGEMENT
    ),
    ("delete", "/v1/adapters/{name}"): Operation(
        "deleteAdapter", _ADAPTERS, "Remove an adapter or a version", answer("AdapterDeleted"), errors=_CONFLICT
    ),
    ("put", "/v1/adapters/{name}/aliases/{alias}"): Operation(
        "setAlias", _ADAPTERS, "Point an alias at a version", answer("Adapter"), errors=_CONFLICT
    ),
    ("delete", "/v1/adapters/{name}/aliases/{alias}"): Operation(
        "deleteAlias", _ADAPTERS, "Remove an alias", answer("Adapter"), errors=_CONFLICT
    ),
    ("post", "/v1/adapters/{name}/rollback"): Operation(
        "rollbackAdapter", _ADAPTERS, "Go back to an earlier version", answer("Adapter"), errors=_CONFLICT
    ),
    ("put", "/v1/adapters/{name}/pin"): Operation(
        "pinAdapter", _ADAPTERS, "Pin an adapter in its place", answer("Adapter"), errors=(*_CONFLICT, 500)
    ),
    ("delete", "/v1/adapters/{name}/pin"): Operation(
        "unpinAdapter", _ADAPTERS, "Unpin an adapter", answer("Adapter"), errors=(*_CONFLICT, 500)
    ),
    ("post", "/v1/load_lora_adapter"): Operation(
        "vllmLoadAdapter", _ADAPTERS, "Register an adapter (vLLM)", _TEXT, errors=(*_CONFLICT, 413, 422, 500, 503)
    ),
    ("post", "/v1/unload_lora_adapter"): Operation(
        "vllmUnloadAdapter", _ADAPTERS, "Remove an adapter (vLLM)", _TEXT, errors=_CONFLICT
    ),
    ("get", "/health/live"): Operation("live", _OPERATIONS, "Liveness", answer("Health"), errors=()),
    ("get", "/health/ready"): Operation(
        "ready", _OPERATIONS, "Readiness", answer("Health"), errors=(),
        others={"503": _good("Starting or stopping.", "Health")},
    ),
    ("get", "/metrics"): Operation("metrics", _OPERATIONS, "Prometheus metrics", _TEXT, errors=()),
    ("get", "/v1/status"): Operation("status", _OPERATIONS, "What is resident where", answer("Status"), errors=()),
}  # fmt: skip
