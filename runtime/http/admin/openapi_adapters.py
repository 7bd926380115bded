"""LoRA adapters in the OpenAPI document: cards in the list of models, registration, versions, aliases, pins."""

from adapters.types import Limits
from registry.names import ADAPTER
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
    json_body,
    nullable,
    one_of,
    other_answer,
    record,
    ref,
)
from runtime.scheduling.probes import MOST_BYTES

_ADAPTERS = "Adapters"
_DIGEST: Json = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_TAG: Json = {"type": "string", "pattern": "^v[1-9][0-9]*$"}
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
    "AdapterCard": record(
        {
            "id": STRING,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": STRING,
            "root": STRING,
            "parent": {**STRING, "description": "The base model."},
            "task": TASK,
            "digest": _DIGEST,
            "version": _TAG,
            "context_length": nullable(COUNT),
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
            "tier": TIER,
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
}

_REGISTER = (*MANAGEMENT, 408, 409, 413, 422, 500, 503)

OPERATIONS: dict[tuple[str, str], Operation] = {
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
        errors=_REGISTER, others={"201": other_answer("A new version.", "Adapter")},
    ),
    ("post", "/v1/adapters/combine"): Operation(
        "combineAdapters", _ADAPTERS, "Combine adapters into a new one", answer("Adapter"),
        description="A process of its own makes it with peft, from adapters of one base; it is then checked and "
        "registered as any other. The same content again changes nothing (200).",
        errors=(*CONFLICT, 422, 500, 503), others={"201": other_answer("A new version.", "Adapter")},
    ),
    ("get", "/v1/adapters/{name}"): Operation(
        "getAdapter", _ADAPTERS, "Show an adapter", answer("Adapter"), errors=MANAGEMENT
    ),
    ("delete", "/v1/adapters/{name}"): Operation(
        "deleteAdapter", _ADAPTERS, "Remove an adapter or a version", answer("AdapterDeleted"), errors=CONFLICT
    ),
    ("put", "/v1/adapters/{name}/aliases/{alias}"): Operation(
        "setAlias", _ADAPTERS, "Point an alias at a version", answer("Adapter"), errors=CONFLICT
    ),
    ("delete", "/v1/adapters/{name}/aliases/{alias}"): Operation(
        "deleteAlias", _ADAPTERS, "Remove an alias", answer("Adapter"), errors=CONFLICT
    ),
    ("post", "/v1/adapters/{name}/rollback"): Operation(
        "rollbackAdapter", _ADAPTERS, "Go back to an earlier version", answer("Adapter"), errors=CONFLICT
    ),
    ("put", "/v1/adapters/{name}/pin"): Operation(
        "pinAdapter", _ADAPTERS, "Pin an adapter in its place", answer("Adapter"), errors=(*CONFLICT, 500)
    ),
    ("delete", "/v1/adapters/{name}/pin"): Operation(
        "unpinAdapter", _ADAPTERS, "Unpin an adapter", answer("Adapter"), errors=(*CONFLICT, 500)
    ),
    ("post", "/v1/load_lora_adapter"): Operation(
        "vllmLoadAdapter", _ADAPTERS, "Register an adapter (vLLM)", TEXT, errors=(*CONFLICT, 413, 422, 500, 503)
    ),
    ("post", "/v1/unload_lora_adapter"): Operation(
        "vllmUnloadAdapter", _ADAPTERS, "Remove an adapter (vLLM)", TEXT, errors=CONFLICT
    ),
}  # fmt: skip
