"""Routers in the OpenAPI document."""

from registry.recipes.router import RouterSpec
from runtime.gateway.routing.store import RouterView
from runtime.http.openapi_parts import (
    CONFLICT,
    MANAGEMENT,
    Json,
    Operation,
    Operations,
    json_of,
    models,
    other_answer,
    structs,
    table,
    versioned,
)
from runtime.http.routing.endpoints import (
    FittedBody,
    FittedView,
    ReportView,
    RouterDeletedView,
    RouterListView,
    RouteView,
)

_TAG = "Routers"
SCHEMAS: dict[str, Json] = {
    **structs(RouterView, RouterListView, RouterDeletedView, FittedView, RouteView, ReportView, FittedBody),
    **models(RouterSpec),
}
_FITTED = "/v1/routers/{name}/fitted/{kind}"
_CHANGE = (*CONFLICT, 422, 503)

OPERATIONS: Operations = {
    ("post", "/v1/route"): Operation(
        "explainRoute", _TAG, "Whom a router would choose, and why", json_of("Route"),
        description="The body of a request, with its path as `endpoint` (/v1/chat/completions if left out). It is the "
        "decision that the request itself would get; nothing is asked of anybody.",
        body={"application/json": {"type": "object"}},
        examples={"dates": {"model": "auto", "messages": [{"role": "user", "content": "3 March 2024"}]}},
        errors=(*MANAGEMENT, 503),
    ),
    ("post", "/v1/routers"): Operation(
        "addRouter", _TAG, "Add a router, or a new version of one", json_of("Router"), body=json_of("RouterSpec"),
        description="What was fitted for the version before is kept.",
        examples={"two": {"id": "two", "targets": [{"name": "starter-chat"}, {"name": "uppercase"}]}},
        errors=_CHANGE, others={"201": other_answer("It is new.", "Router")},
    ),
    **table(
        _TAG,
        ("get", "/v1/routers", "listRouters", "List routers", "RouterList", ()),
        ("get", "/v1/routers/{name}", "getRouter", "Show a router", "Router", MANAGEMENT),
        ("delete", "/v1/routers/{name}", "removeRouter", "Remove a router", "RouterDeleted", CONFLICT),
        ("get", _FITTED, "getFitted", "What was fitted, as a file", "Fitted", (*MANAGEMENT, 422)),
    ),
    **versioned("/v1/routers/{name}", _TAG, "Router", "RouterAlias", "rollBackRouter"),
    ("get", "/v1/routers/{name}/report"): Operation(
        "reportRouter", _TAG, "What came of a router's decisions", json_of("Report"), errors=(*MANAGEMENT, 503),
        description="With the scope `admin` of all teams, else of the key's own. A request counts once, for who "
        "answered.",
    ),
    ("put", _FITTED): Operation(
        "putFitted", _TAG, "A new version with another fitted model", json_of("Router"), body=json_of("FittedBody"),
        errors=_CHANGE, others={"201": other_answer("It is new.", "Router")},
    ),
}  # fmt: skip
