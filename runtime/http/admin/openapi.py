"""Our own interface in the OpenAPI document: models, operations. Adapters: `openapi_adapters`."""

from runtime.http.openapi_parts import (
    BOOLEAN,
    CONFLICT,
    COUNT,
    INTEGER,
    MANAGEMENT,
    NUMBER,
    STRING,
    TASK,
    TEXT,
    TIER,
    Json,
    Operation,
    answer,
    array,
    either,
    nullable,
    one_of,
    other_answer,
    record,
    ref,
)
from runtime.residency.states import ModelState

_MODELS, _OPERATIONS = "Models", "Operations"
_FAULT = record({"message": STRING, "code": STRING})

SCHEMAS: dict[str, Json] = {
    "Model": record(
        {
            "id": STRING,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": STRING,
            "task": TASK,
            "state": one_of(*(state.value for state in ModelState)),
            "tier": TIER,
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
                record(
                    {
                        "model": STRING,
                        "bytes": COUNT,
                        "running": COUNT,
                        "action": one_of("evict", "drain", "sleep"),
                    }
                )
            ),
            "expected_seconds": NUMBER,
        }
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
                    "prewarmed": array(
                        record({"slot": COUNT, "engine": STRING, "state": one_of("warm", "importing"), "bytes": COUNT})
                    ),
                }
            ),
            "waiting": COUNT,
            "uptime_seconds": NUMBER,
            "models": array(ref("Model")),
        }
    ),
}

_LOAD = (*MANAGEMENT, 409, 429, 500, 503)


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/v1/models"): Operation("listModels", _MODELS, "List models and adapters", answer("ModelList"), errors=()),
    ("get", "/v1/models/{model}"): Operation(
        "getModel", _MODELS, "Show a model or adapter",
        {"application/json": either(ref("Model"), ref("AdapterCard"))}, errors=MANAGEMENT,
    ),
    ("post", "/v1/models/{model}/load"): Operation(
        "loadModel", _MODELS, "Load a model", answer("Model"), errors=_LOAD,
        others={"202": other_answer("With `wait=false`: the load has begun; Location tells where to look.", "Model")},
    ),
    ("post", "/v1/models/{model}/unload"): Operation(
        "unloadModel", _MODELS, "Unload a model", answer("Model"), errors=(*CONFLICT, 500, 503)
    ),
    ("post", "/v1/models/{model}/plan"): Operation(
        "planLoad", _MODELS, "What a load would do", answer("Plan"), errors=(*MANAGEMENT, 503)
    ),
    ("put", "/v1/models/{model}/pin"): Operation("pinModel", _MODELS, "Pin a model", answer("Model"), errors=CONFLICT),
    ("delete", "/v1/models/{model}/pin"): Operation(
        "unpinModel", _MODELS, "Unpin a model", answer("Model"), errors=CONFLICT
    ),
    ("put", "/v1/models/{model}/aliases/{alias}"): Operation(
        "setModelAlias", _MODELS, "Point an alias at a model", answer("Model"), errors=CONFLICT
    ),
    ("delete", "/v1/models/{model}/aliases/{alias}"): Operation(
        "deleteModelAlias", _MODELS, "Remove an alias of a model", answer("Model"), errors=MANAGEMENT
    ),
    ("get", "/health/live"): Operation("live", _OPERATIONS, "Liveness", answer("Health"), errors=()),
    ("get", "/health/ready"): Operation(
        "ready", _OPERATIONS, "Readiness", answer("Health"), errors=(),
        others={"503": other_answer("Starting or stopping.", "Health")},
    ),
    ("get", "/metrics"): Operation("metrics", _OPERATIONS, "Prometheus metrics", TEXT, errors=()),
    ("get", "/v1/status"): Operation("status", _OPERATIONS, "What is resident where", answer("Status"), errors=()),
}  # fmt: skip
