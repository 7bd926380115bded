"""Our own interface in the OpenAPI document: models, adapters, operations."""

from pydantic.json_schema import models_json_schema

from runtime.gateway.launch.views import (
    ModelAddedView,
    ModelEditedView,
    ModelRemovedView,
    ModelStepView,
    ProposalView,
    ReloadedView,
)
from runtime.gateway.providers.views import ProviderCardView, ProviderCheckView, ProviderListView
from runtime.gateway.routing.cards import RouterCardView
from runtime.gateway.views.overview import StatusView
from runtime.gateway.views.values import AdapterCardView, ModelView, PlanView
from runtime.http.admin.answers import (
    AdapterCheckView,
    AdapterDeletedView,
    AdapterListView,
    HealthView,
    LoadStartedView,
)
from runtime.http.admin.bodies import AddModelBody, EditModelBody, RegisterRequest
from runtime.http.admin.combine import AdapterMergedView
from runtime.http.admin.requests import RequestView
from runtime.http.openapi_parts import (
    BOOLEAN,
    CONFLICT,
    MANAGEMENT,
    STRING,
    TEXT,
    Json,
    Operation,
    answer,
    array,
    either,
    json_body,
    other_answer,
    record,
    ref,
    structs,
    versioned,
)

_MODELS, _ADAPTERS, _OPERATIONS = "Models", "Adapters", "Operations"
_UPLOAD = "A tar, tar.gz or zip with the adapter's files, of up to 2 GiB where the server is not set otherwise."
_CARDS = ("Model", "AdapterCard", "ProviderCard", "RouterCard")
_REF = "#/components/schemas/{model}"
_REGISTER_SCHEMAS = models_json_schema(
    [(kind, "validation") for kind in (RegisterRequest, AddModelBody, EditModelBody)], ref_template=_REF
)[1]["$defs"]
_REGISTER_FIELDS = _REGISTER_SCHEMAS["RegisterRequest"]["properties"]
_PROBE_FIELDS = _REGISTER_SCHEMAS["ProbeBody"]["properties"]

SCHEMAS: dict[str, Json] = {
    **structs(
        ModelView,
        AdapterCardView,
        LoadStartedView,
        PlanView,
        StatusView,
        ProviderCardView,
        RouterCardView,
        ProviderListView,
        ProviderCheckView,
        HealthView,
        AdapterListView,
        AdapterCheckView,
        AdapterDeletedView,
        ProposalView,
        ModelAddedView,
        ModelStepView,
        ModelEditedView,
        ModelRemovedView,
        ReloadedView,
        RequestView,
        AdapterMergedView,
    ),
    **_REGISTER_SCHEMAS,
    "ModelList": record({"object": {"const": "list"}, "data": array(either(*map(ref, _CARDS)))}),
    "RegisterForm": record(
        {
            "name": _REGISTER_FIELDS["name"],
            "base": _REGISTER_FIELDS["base"],
            "alias": {**STRING, "description": "Pointed at the new version."},
            "shared": {
                **BOOLEAN,
                "description": "All teams may use it; left out: as it was, or your team alone.",
            },
            "probe_prompt": _PROBE_FIELDS["prompt"],
            "probe_expected": _PROBE_FIELDS["expected"],
            "file": {"type": "string", "contentMediaType": "application/octet-stream", "description": _UPLOAD},
        },
        ["name", "base", "file"],
        open_=False,
    ),
}

_LOAD = (*MANAGEMENT, 409, 429, 500, 503)
_ADD = (*MANAGEMENT, 409, 422, 500, 503)
_REGISTER = (*MANAGEMENT, 408, 409, 413, 422, 500, 503)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/v1/models"): Operation(
        "listModels", _MODELS, "List models, adapters and routers", answer("ModelList"), errors=()
    ),
    ("get", "/v1/models/{model}"): Operation(
        "getModel", _MODELS, "Show a model, adapter or router",
        {"application/json": either(*map(ref, _CARDS))}, errors=MANAGEMENT,
    ),
    ("post", "/v1/models"): Operation(
        "addModel", _MODELS, "Add a model",
        {"application/json": either(ref("Proposal"), ref("ModelAdded")), "text/event-stream": ref("ModelStep")},
        description="A recipe is proposed with the reason of each value, written down, and served at once. What is "
        "there already is left as it is (200). With `dry_run` there is only the proposal. Files of a hub come while "
        "the model is listed: `progress` of GET /v1/models/{id}, or `stream`.",
        examples={
            "folder": {"source": "/srv/models/support-merged"},
            "hub": {"source": "Qwen/Qwen3-0.6B", "id": "qwen", "overrides": {"context_length": 8192}},
            "proposal": {"source": "package:models.starter/pack/starter-chat", "id": "mine", "dry_run": True},
        },
        body=json_body("AddModelBody"), errors=_ADD, others={"201": other_answer("It was added.", "ModelAdded")},
    ),
    ("patch", "/v1/models/{model}"): Operation(
        "editModel", _MODELS, "Change a model's recipe", answer("ModelEdited"), body=json_body("EditModelBody"),
        examples={"cache": {"changes": {"memory.kv_cache": "512MiB"}}}, errors=_ADD,
    ),
    ("delete", "/v1/models/{model}"): Operation(
        "removeModel", _MODELS, "Remove a model that was added", answer("ModelRemoved"), errors=(*CONFLICT, 500, 503)
    ),
    ("get", "/v1/models/{model}/recipe"): Operation(
        "exportModel", _MODELS, "A model's recipe, as a recipe file has it", {"application/yaml": {"type": "object"}},
        errors=MANAGEMENT,
    ),
    ("delete", "/v1/models/{model}/download"): Operation(
        "cancelDownload", _MODELS, "Stop bringing a model's files", answer("Model"), errors=MANAGEMENT
    ),
    ("post", "/v1/recipes/reload"): Operation(
        "reload", _MODELS, "Read the recipe files again", answer("Reloaded"), errors=(500, 503)
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
    ("delete", "/v1/models/{model}/estimate"): Operation(
        "forgetEstimate", _MODELS, "Forget what was measured of a model", answer("Model"), errors=(*MANAGEMENT, 503)
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
    **{
        (method, path): Operation(
            id_, _OPERATIONS, summary, answer("Health"), errors=(),
            others={"503": other_answer("Starting or stopping.", "Health")},
        )
        for method, path, id_, summary in (
            ("get", "/health", "health", "Readiness (vLLM, TGI)"),
            ("get", "/infinity/health", "healthInfinity", "Readiness (Infinity)"),
            ("get", "/ping", "ping", "Readiness (SageMaker)"),
            ("post", "/ping", "pingByPost", "Readiness (SageMaker)"),
        )
    },
    ("get", "/version"): Operation(
        "version", _OPERATIONS, "The server's version", {"application/json": record({"version": STRING})}, errors=()
    ),
    ("get", "/v1/cluster/auth"): Operation(
        "clusterAuth", _OPERATIONS, "Whether a key has to be shown (Xinference)",
        {"application/json": record({"auth": {"type": "boolean"}})}, errors=(),
    ),
    ("get", "/metrics"): Operation("metrics", _OPERATIONS, "Prometheus metrics", TEXT, errors=()),
    ("get", "/v1/providers"): Operation(
        "listProviders", _OPERATIONS, "Providers and their breakers", answer("ProviderList"), errors=()
    ),
    ("post", "/v1/providers/{provider}/test"): Operation(
        "testProvider", _OPERATIONS, "Whether a provider answers", answer("ProviderCheck"), errors=MANAGEMENT
    ),
    ("get", "/v1/status"): Operation("status", _OPERATIONS, "What is resident where", answer("Status"), errors=()),
    ("get", "/v1/requests/{request_id}"): Operation(
        "getRequest", _OPERATIONS, "All that is known of one request", answer("Request"), errors=MANAGEMENT
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
        errors=_REGISTER, others={"201": other_answer("A new version.", "Adapter")},
    ),
    ("post", "/v1/adapters/combine"): Operation(
        "combineAdapters", _ADAPTERS, "Combine adapters into a new one", answer("Adapter"),
        description="A process of its own makes it with peft, from adapters of one base; it is then checked and "
        "registered as any other. The same content again changes nothing (200).",
        errors=(*CONFLICT, 422, 500, 503), others={"201": other_answer("A new version.", "Adapter")},
    ),
    ("post", "/v1/adapters/{name}/merge"): Operation(
        "mergeAdapter", _ADAPTERS, "Write base and adapter as one model", answer("AdapterMerged"),
        description="Into the server's data directory; `output` can be added with POST /v1/models. It takes the base's "
        "memory and disk once more. A version that was merged before is told again.",
        errors=(*CONFLICT, 422, 500, 503),
    ),
    ("get", "/v1/adapters/{name}"): Operation(
        "getAdapter", _ADAPTERS, "Show an adapter", answer("Adapter"), errors=MANAGEMENT
    ),
    ("delete", "/v1/adapters/{name}"): Operation(
        "deleteAdapter", _ADAPTERS, "Remove an adapter or a version", answer("AdapterDeleted"), errors=CONFLICT
    ),
    **versioned("/v1/adapters/{name}", _ADAPTERS, "Adapter", "Alias", "rollbackAdapter"),
    ("put", "/v1/adapters/{name}/pin"): Operation(
        "pinAdapter", _ADAPTERS, "Pin an adapter in its place", answer("Adapter"), errors=(*CONFLICT, 500)
    ),
    ("delete", "/v1/adapters/{name}/pin"): Operation(
        "unpinAdapter", _ADAPTERS, "Unpin an adapter", answer("Adapter"), errors=(*CONFLICT, 500)
    ),
    ("put", "/v1/adapters/{name}/shared"): Operation(
        "shareAdapter", _ADAPTERS, "Let all teams use an adapter", answer("Adapter"), errors=CONFLICT
    ),
    ("delete", "/v1/adapters/{name}/shared"): Operation(
        "unshareAdapter", _ADAPTERS, "Let only its own team use an adapter", answer("Adapter"), errors=CONFLICT
    ),
    ("post", "/v1/load_lora_adapter"): Operation(
        "vllmLoadAdapter", _ADAPTERS, "Register an adapter (vLLM)", TEXT, errors=(*CONFLICT, 413, 422, 500, 503)
    ),
    ("post", "/v1/unload_lora_adapter"): Operation(
        "vllmUnloadAdapter", _ADAPTERS, "Remove an adapter (vLLM)", TEXT, errors=CONFLICT
    ),
}  # fmt: skip
