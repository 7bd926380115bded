"""Our own interface in the OpenAPI document: models, adapters, operations."""

from runtime.gateway.adapters import AdapterDeletedView
from runtime.gateway.combine import AdapterMergedView
from runtime.gateway.launch.views import (
    ModelAddedView,
    ModelEditedView,
    ModelRemovedView,
    ModelStepView,
    ProposalView,
    ReloadedView,
)
from runtime.gateway.providers.views import ProviderCardView, ProviderCheckView, ProviderListView
from runtime.gateway.routing.dispatcher import RouterCardView
from runtime.gateway.views.overview import StatusView
from runtime.gateway.views.values import AdapterCardView, ModelView, PlanView
from runtime.http.admin.answers import AdapterCheckView, AdapterListView, HealthView, LoadStartedView
from runtime.http.admin.bodies import AddModelBody, EditModelBody, RegisterRequest
from runtime.http.admin.requests import RequestView
from runtime.http.openapi_parts import (
    BOOLEAN,
    CONFLICT,
    MANAGEMENT,
    STRING,
    TEXT,
    Json,
    Operation,
    Operations,
    array,
    either,
    json_of,
    models,
    other_answer,
    record,
    ref,
    structs,
    table,
    versioned,
)

_MODELS, _ADAPTERS, _OPERATIONS = "Models", "Adapters", "Operations"
_UPLOAD = "A tar, tar.gz or zip with the adapter's files, of up to 2 GiB where the server is not set otherwise."
_CARDS = ("Model", "AdapterCard", "ProviderCard", "RouterCard")
_REGISTER_SCHEMAS = models(RegisterRequest, AddModelBody, EditModelBody)
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

_ADD = (*MANAGEMENT, 409, 422, 500, 503)
_BUSY = (*CONFLICT, 500, 503)
_NOT_READY = {"503": other_answer("Starting or stopping.", "Health")}
_NEW_VERSION = {"201": other_answer("A new version.", "Adapter")}
_MODEL, _ADAPTER = "/v1/models/{model}", "/v1/adapters/{name}"

OPERATIONS: Operations = {
    **table(
        _MODELS,
        ("get", "/v1/models", "listModels", "List models, adapters and routers", "ModelList", ()),
        ("delete", _MODEL, "removeModel", "Remove a model that was added", "ModelRemoved", _BUSY),
        ("delete", f"{_MODEL}/download", "cancelDownload", "Stop bringing a model's files", "Model", MANAGEMENT),
        ("post", "/v1/recipes/reload", "reload", "Read the recipe files again", "Reloaded", (500, 503)),
        ("post", f"{_MODEL}/unload", "unloadModel", "Unload a model", "Model", _BUSY),
        ("post", f"{_MODEL}/plan", "planLoad", "What a load would do", "Plan", (*MANAGEMENT, 503)),
        ("put", f"{_MODEL}/pin", "pinModel", "Pin a model", "Model", CONFLICT),
        ("delete", f"{_MODEL}/pin", "unpinModel", "Unpin a model", "Model", CONFLICT),
        ("delete", f"{_MODEL}/estimate", "forgetEstimate", "Forget what was measured of a model", "Model",
         (*MANAGEMENT, 503)),
        ("put", f"{_MODEL}/aliases/{{alias}}", "setModelAlias", "Point an alias at a model", "Model", CONFLICT),
        ("delete", f"{_MODEL}/aliases/{{alias}}", "deleteModelAlias", "Remove an alias of a model", "Model",
         MANAGEMENT),
    ),
    ("get", _MODEL): Operation(
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
        body=json_of("AddModelBody"), errors=_ADD, others={"201": other_answer("It was added.", "ModelAdded")},
    ),
    ("patch", _MODEL): Operation(
        "editModel", _MODELS, "Change a model's recipe", json_of("ModelEdited"), body=json_of("EditModelBody"),
        examples={"cache": {"changes": {"memory.kv_cache": "512MiB"}}}, errors=_ADD,
    ),
    ("get", f"{_MODEL}/recipe"): Operation(
        "exportModel", _MODELS, "A model's recipe, as a recipe file has it", {"application/yaml": {"type": "object"}},
        errors=MANAGEMENT,
    ),
    ("post", f"{_MODEL}/load"): Operation(
        "loadModel", _MODELS, "Load a model", json_of("Model"), errors=(*MANAGEMENT, 409, 429, 500, 503),
        others={"202": other_answer("With `wait=false`: the load has begun; Location tells where to look.", "Model")},
    ),
    **{
        (method, path): Operation(id_, _OPERATIONS, summary, json_of("Health"), errors=(), others=_NOT_READY)
        for method, path, id_, summary in (
            ("get", "/health/ready", "ready", "Readiness"),
            ("get", "/health", "health", "Readiness (vLLM, TGI)"),
            ("get", "/infinity/health", "healthInfinity", "Readiness (Infinity)"),
            ("get", "/ping", "ping", "Readiness (SageMaker)"),
            ("post", "/ping", "pingByPost", "Readiness (SageMaker)"),
        )
    },
    **table(
        _OPERATIONS,
        ("get", "/health/live", "live", "Liveness", "Health", ()),
        ("get", "/v1/providers", "listProviders", "Providers and their breakers", "ProviderList", ()),
        ("post", "/v1/providers/{provider}/test", "testProvider", "Whether a provider answers", "ProviderCheck",
         MANAGEMENT),
        ("get", "/v1/status", "status", "What is resident where", "Status", ()),
        ("get", "/v1/requests/{request_id}", "getRequest", "All that is known of one request", "Request", MANAGEMENT),
    ),
    ("get", "/version"): Operation(
        "version", _OPERATIONS, "The server's version", {"application/json": record({"version": STRING})}, errors=()
    ),
    ("get", "/v1/cluster/auth"): Operation(
        "clusterAuth", _OPERATIONS, "Whether a key has to be shown (Xinference)",
        {"application/json": record({"auth": {"type": "boolean"}})}, errors=(),
    ),
    ("get", "/metrics"): Operation("metrics", _OPERATIONS, "Prometheus metrics", TEXT, errors=()),
    **table(
        _ADAPTERS,
        ("get", "/v1/adapters", "listAdapters", "List adapters", "AdapterList", MANAGEMENT),
        ("get", _ADAPTER, "getAdapter", "Show an adapter", "Adapter", MANAGEMENT),
        ("delete", _ADAPTER, "deleteAdapter", "Remove an adapter or a version", "AdapterDeleted", CONFLICT),
        ("put", f"{_ADAPTER}/pin", "pinAdapter", "Pin an adapter in its place", "Adapter", (*CONFLICT, 500)),
        ("delete", f"{_ADAPTER}/pin", "unpinAdapter", "Unpin an adapter", "Adapter", (*CONFLICT, 500)),
        ("put", f"{_ADAPTER}/shared", "shareAdapter", "Let all teams use an adapter", "Adapter", CONFLICT),
        ("delete", f"{_ADAPTER}/shared", "unshareAdapter", "Let only its own team use an adapter", "Adapter", CONFLICT),
    ),
    **versioned(_ADAPTER, _ADAPTERS, "Adapter", "Alias", "rollbackAdapter"),
    ("post", "/v1/adapters"): Operation(
        "registerAdapter", _ADAPTERS, "Register an adapter",
        {"application/json": either(ref("Adapter"), ref("AdapterCheck"))},
        body={**json_of("RegisterRequest"), "multipart/form-data": ref("RegisterForm")},
        description="A name that exists gets a new version; the same content again changes nothing (200). With "
        "`dry_run=true` it is only checked.",
        examples={
            "folder": {"name": "support", "base": "starter-chat", "source": {"path": "/srv/adapters/support"}},
            "hub": {"name": "support", "base": "starter-chat", "source": {"hub": "team/support", "revision": "main"}},
        },
        errors=(*MANAGEMENT, 408, 409, 413, 422, 500, 503), others=_NEW_VERSION,
    ),
    ("post", "/v1/adapters/combine"): Operation(
        "combineAdapters", _ADAPTERS, "Combine adapters into a new one", json_of("Adapter"),
        description="A process of its own makes it with peft, from adapters of one base; it is then checked and "
        "registered as any other. The same content again changes nothing (200).",
        errors=(*CONFLICT, 422, 500, 503), others=_NEW_VERSION,
    ),
    ("post", f"{_ADAPTER}/merge"): Operation(
        "mergeAdapter", _ADAPTERS, "Write base and adapter as one model", json_of("AdapterMerged"),
        description="Into the server's data directory; `output` can be added with POST /v1/models. It takes the base's "
        "memory and disk once more. A version that was merged before is told again.",
        errors=(*CONFLICT, 422, 500, 503),
    ),
    ("post", "/v1/load_lora_adapter"): Operation(
        "vllmLoadAdapter", _ADAPTERS, "Register an adapter (vLLM)", TEXT, errors=(*CONFLICT, 413, 422, 500, 503)
    ),
    ("post", "/v1/unload_lora_adapter"): Operation(
        "vllmUnloadAdapter", _ADAPTERS, "Remove an adapter (vLLM)", TEXT, errors=CONFLICT
    ),
}  # fmt: skip
