"""Routers: CRUD, versions, aliases, fitted models, explanations and reports."""

import asyncio
import base64
import binascii
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from registry.base.wording import quoted
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, Unfit
from registry.recipes.router import RouterSpec
from routing.intents.kinds import Kind
from routing.routers.replay import ReplayOutcome, ReplayPoint, outcomes, replay
from runtime.gateway.routing.store import RouterAddition, RouterView
from runtime.http import hints
from runtime.http.admin.bodies import AliasBody, RollbackBody, json_answer
from runtime.http.audio.endpoints import FORM_ENDPOINTS
from runtime.http.bodies import decode, parse_object, read_body
from runtime.http.chat.endpoints import ENDPOINTS as CHAT
from runtime.http.cohere.endpoints import ENDPOINTS as COHERE
from runtime.http.embeddings.endpoints import ENDPOINTS as EMBEDDINGS
from runtime.http.errors import Dialect, limit_headers
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.rerank.endpoints import ENDPOINTS as RERANK
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, MANAGEMENT
from tenants.caller import Scope
from tenants.ledger.lookup import routed_requests

route = RouteGroup("Routers")
PART = 1 << 20
"""Letters of base64 that are converted at a time, since other threads wait meanwhile."""

EXPLAINED = {endpoint.path: endpoint for endpoint in (*CHAT, *COHERE, *EMBEDDINGS, *RERANK, *FORM_ENDPOINTS)}
Name = Annotated[str, Path(alias="name", description="router's name")]
FittedKind = Annotated[Kind, Path(alias="kind", description="which of its models")]


class RouterListView(msgspec.Struct, frozen=True):
    data: list[RouterView]
    object: str = "list"


class RouterDeletedView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "router.deleted"
    name: str
    deleted: bool = True


class FittedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted model, as sent by `roundhouse routers fit`."""

    safetensors: str
    """Base64."""


class FittedView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "router.fitted"
    name: str
    kind: Kind
    safetensors: str


class RouteView(msgspec.Struct, frozen=True, kw_only=True):
    """The target that a router would choose for a body, and why."""

    object: str = "route"
    router: str
    target: str
    reason: str
    score: float | None
    scores: dict[str, float]
    alternatives: list[str]
    fallbacks: list[str]
    saw: dict[str, str]


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a router's decisions. Costs are the mean per request, in millionths of the server's currency."""

    object: str = "router.report"
    router: str
    days: float
    requests: int
    outcomes: list[ReplayOutcome]
    replay: list[ReplayPoint]
    """Results with other thresholds of its intents."""


@route("GET", "/v1/routers", scope=Scope.MODELS, answer=RouterListView, errors=())
async def list_routers(gateway: CurrentGateway, context: CurrentContext) -> Response:
    """List routers."""
    return json_answer(
        RouterListView([gateway.dispatcher.priced(v, context.caller) for v in gateway.services.routers.all()])
    )


@route("GET", "/v1/routers/{name}", scope=Scope.MODELS, answer=RouterView)
async def get_router(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Show a router.

    `name@v2` and `name@alias` show that version.
    """
    return json_answer(gateway.dispatcher.priced(await gateway.services.routers.version(name), context.caller))


@route(
    "POST",
    "/v1/routers",
    scope=Scope.MODELS,
    answer=RouterView,
    body=RouterSpec,
    errors=(*CONFLICT, 422, 503),
    others={201: ("It is new.", RouterView)},
    examples={"two": {"id": "two", "targets": [{"name": "starter-chat"}, {"name": "uppercase"}]}},
)
async def add_router(
    request: Request, gateway: CurrentGateway, alias: Annotated[str | None, Query()] = None
) -> Response:
    """Add a router, or a new version of one.

    The body is a definition as in recipe files, without `kind` and `source`. Fitted models are kept.
    """
    data = parse_object(await read_body(request, gateway.services.settings.max_json))
    data.pop("kind", None)
    if data.get("source") is not None:
        raise BadRequest("Only recipe files name a source: send what was fitted with PUT.", param="source")
    return _kept(
        await gateway.services.routers.put(
            await asyncio.to_thread(_spec, data, gateway.services.settings.bounds), alias
        )
    )


def _spec(data: Mapping[str, Any], bounds: Bounds) -> RouterSpec:
    """Raises Unfit."""
    try:
        return RouterSpec.model_validate(data, context=bounds)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'router'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise Unfit("The router cannot be used.", faults[:20], code="bad_router") from None


@route(
    "PUT",
    "/v1/routers/{name}/fitted/{kind}",
    scope=Scope.MODELS,
    answer=RouterView,
    body=FittedBody,
    errors=(*CONFLICT, 422, 503),
    others={201: ("It is new.", RouterView)},
)
async def put_fitted(request: Request, gateway: CurrentGateway, name: Name, kind: FittedKind) -> Response:
    """Add a version with another fitted model."""
    body = await read_body(request, most_fitted(gateway.services.settings.bounds))
    return _kept(await gateway.services.routers.fit(name, kind, await asyncio.to_thread(_model, body)))


def most_fitted(bounds: Bounds) -> int:
    """The most bytes of a body with a fitted model, which is base64."""
    return bounds.fitted_bytes * 4 // 3 + 1024


def _model(body: bytes) -> bytes:
    """Raises BadRequest."""
    text = decode(body, FittedBody).safetensors
    try:
        return b"".join(_decoded(text))
    except (binascii.Error, ValueError):
        raise BadRequest("'safetensors' must be base64.", param="safetensors") from None


def _decoded(text: str) -> Iterator[bytes]:
    """Decode base64 in parts, between which the event loop runs. Raises ValueError."""
    for start in range(0, len(text), PART):
        part = text[start : start + PART]
        if "=" in part and start + PART < len(text):
            raise ValueError("padding before the end")
        yield base64.b64decode(part, validate=True)


def _encoded(data: bytes) -> str:
    size = PART // 4 * 3
    return b"".join(base64.b64encode(data[start : start + size]) for start in range(0, len(data), size)).decode()


@route("GET", "/v1/routers/{name}/fitted/{kind}", scope=Scope.MODELS, answer=FittedView, errors=(*MANAGEMENT, 422))
async def get_fitted(gateway: CurrentGateway, name: Name, kind: FittedKind) -> Response:
    """Show a fitted model as a file."""
    data = await gateway.services.routers.model(name, kind)
    return json_answer(FittedView(name=name, kind=kind, safetensors=await asyncio.to_thread(_encoded, data)))


@route("DELETE", "/v1/routers/{name}", scope=Scope.MODELS, answer=RouterDeletedView, errors=CONFLICT)
async def remove_router(gateway: CurrentGateway, name: Name, force: Annotated[bool, Query()] = False) -> Response:
    """Remove a router.

    Refused while aliases point to it.
    """
    await gateway.services.routers.remove(name, force=force)
    return json_answer(RouterDeletedView(name=name))


@route("PUT", "/v1/routers/{name}/aliases/{alias}", scope=Scope.MODELS, answer=RouterView, errors=CONFLICT)
async def set_router_alias(gateway: CurrentGateway, name: Name, alias: str, body: AliasBody) -> Response:
    """Point an alias at a version."""
    view = await gateway.services.routers.change(name, lambda table, key: table.set_alias(key, alias, body.version))
    return json_answer(view)


@route("DELETE", "/v1/routers/{name}/aliases/{alias}", scope=Scope.MODELS, answer=RouterView, errors=CONFLICT)
async def delete_router_alias(gateway: CurrentGateway, name: Name, alias: str) -> Response:
    """Remove an alias."""
    view = await gateway.services.routers.change(name, lambda table, key: table.remove_alias(key, alias))
    return json_answer(view)


@route("POST", "/v1/routers/{name}/rollback", scope=Scope.MODELS, answer=RouterView, errors=CONFLICT)
async def roll_back_router(gateway: CurrentGateway, name: Name, body: RollbackBody | None = None) -> Response:
    """Go back to an earlier version.

    The named version, or the one before the current one, becomes current.
    """
    version = body.version if body else None
    view = await gateway.services.routers.change(name, lambda table, key: table.rollback(key, version))
    return json_answer(view)


@route(
    "POST",
    "/v1/route",
    scope=Scope.INFER,
    answer=RouteView,
    body={"type": "object"},
    errors=(*MANAGEMENT, 429, 503),
    examples={"dates": {"model": "auto", "messages": [{"role": "user", "content": "3 March 2024"}]}},
)
async def explain_route(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Explain which target a router would choose.

    The body is that of a request, with its path in `endpoint` (default /v1/chat/completions). The decision is the one
    that the request itself would get. It counts as a request, with the tokens of the embedding if one is needed.
    """
    data = parse_object(await read_body(request, gateway.services.settings.max_json))
    path = data.pop("endpoint", "/v1/chat/completions")
    endpoint = EXPLAINED.get(path) if isinstance(path, str) else None
    if endpoint is None:
        raise BadRequest(f"'endpoint' must be one of {', '.join(EXPLAINED)}.", param="endpoint")
    context, body = hints.read(context, path, msgspec.json.encode(data))
    with gateway.record(context, "/v1/route") as counted:
        parsed = endpoint.parse(body, {})
        router = await gateway.services.routers.ready(parsed.model_ref.name)
        if router is None:
            name = quoted(str(parsed.model_ref.name))
            raise NotFound(
                f"There is no router {name}; GET /v1/routers lists them.", code="router_not_found", param="model"
            )
        began = time.perf_counter()
        decision = await gateway.explain(counted, router, path, parsed.calls(None), parsed.model_ref)
        took = (time.perf_counter() - began) * 1e3
    await gateway.flush()
    return json_answer(
        RouteView(
            router=router.label,
            target=decision.target,
            reason=decision.full_reason,
            score=decision.score,
            scores=dict(decision.scores),
            alternatives=list(decision.alternatives),
            fallbacks=list(decision.fallbacks),
            saw=dict(decision.saw),
        ),
        headers={
            "Server-Timing": f"decide;dur={took:.3f}",
            **limit_headers(gateway.levels(counted), Dialect.OPENAI),
        },
    )


@route("GET", "/v1/routers/{name}/report", scope=Scope.MODELS, answer=ReportView, errors=(*MANAGEMENT, 503))
async def report_router(
    gateway: CurrentGateway,
    context: CurrentContext,
    name: Name,
    days: Annotated[float, Query(gt=0, le=366)] = 7.0,
) -> Response:
    """Report the outcome of a router's decisions.

    Covers all teams with the scope `admin`, otherwise the key's own. A request counts once, for the target that
    answered.
    """
    router = gateway.services.routers.show(name).name
    team = gateway.services.usage.visible_team(context.caller, None)
    database = await gateway.services.usage.written()

    def build_report() -> ReportView:  # takes seconds for 200,000 rows
        rows = routed_requests(database, router, time.time() - days * 86400, team)
        return ReportView(router=router, days=days, requests=len(rows), outcomes=outcomes(rows), replay=replay(rows))

    return json_answer(await gateway.services.usage.threads.run_for(context.caller.team, build_report))


def _kept(done: RouterAddition) -> Response:
    view = {**msgspec.structs.asdict(done.router), "new": done.is_new}
    return json_answer(view, 201 if done.is_new else 200, {"Location": f"/v1/routers/{done.router.name}"})
