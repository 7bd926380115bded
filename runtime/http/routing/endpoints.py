"""Routers: add, show, remove; versions, aliases, rollback; their fitted models; and whom one would choose."""

import asyncio
import base64
import binascii
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from registry.base.wording import quoted
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, Unfit
from registry.recipes.router import RouterSpec
from registry.state.versions import RemoveAlias, Rollback, SetAlias
from routing.intents.files import Kind
from routing.routers.replay import ReplayOutcome, ReplayPoint, outcomes, replay
from runtime.gateway.routing.store import RouterAddition, RouterView
from runtime.http import hints
from runtime.http.admin.answers import json_answer
from runtime.http.admin.bodies import AliasBody, RollbackBody
from runtime.http.audio.endpoints import FORM_ENDPOINTS
from runtime.http.bodies import decode, parse_object, read_body
from runtime.http.chat.endpoints import ENDPOINTS as CHAT
from runtime.http.embeddings.endpoints import ENDPOINTS as EMBEDDINGS
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.rerank.endpoints import ENDPOINTS as RERANK
from runtime.http.sending import Route
from tenants.ledger.routed_requests import routed_requests

EXPLAINED = {endpoint.path: endpoint for endpoint in (*CHAT, *EMBEDDINGS, *RERANK, *FORM_ENDPOINTS)}
Name = Annotated[str, Path(alias="name", description="router's name")]
FITTED = "/v1/routers/{name}/fitted/{kind}"
FittedKind = Annotated[Kind, Path(alias="kind", description="which of its models")]


class RouterListView(msgspec.Struct, frozen=True):
    data: list[RouterView]
    object: str = "list"


class RouterDeletedView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "router.deleted"
    name: str
    deleted: bool = True


class FittedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted model as `roundhouse routers fit` sends it."""

    safetensors: str
    """Base64."""


class FittedView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "router.fitted"
    name: str
    kind: Kind
    safetensors: str


class RouteView(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a router would choose for a body, and why. Nothing was asked of anybody."""

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
    """What came of a router's decisions. Costs are millionths of the server's currency, a request's mean."""

    object: str = "router.report"
    router: str
    days: float
    requests: int
    outcomes: list[ReplayOutcome]
    replay: list[ReplayPoint]
    """What other thresholds of its intents would have given."""


async def list_(gateway: CurrentGateway, context: CurrentContext) -> Response:
    return json_answer(
        RouterListView([gateway.dispatcher.priced(v, context.caller) for v in gateway.services.routers.all()])
    )


async def show(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """`name@v2` and `name@alias` too: as that version is."""
    return json_answer(gateway.dispatcher.priced(await gateway.services.routers.version(name), context.caller))


async def put(request: Request, gateway: CurrentGateway, alias: Annotated[str | None, Query()] = None) -> Response:
    """Add a router, or a new version of one: its definition as recipe files have it, without `kind` or `source`."""
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


async def fit(request: Request, gateway: CurrentGateway, name: Name, kind: FittedKind) -> Response:
    """A new version of the router with another fitted model."""
    body = await read_body(request, most_fitted(gateway.services.settings.bounds))
    return _kept(await gateway.services.routers.fit(name, kind, await asyncio.to_thread(_model, body)))


def most_fitted(bounds: Bounds) -> int:
    """Bytes of a body that brings a fitted model: it comes as base64."""
    return bounds.fitted_bytes * 4 // 3 + 1024


def _model(body: bytes) -> bytes:
    """Raises BadRequest."""
    try:
        return base64.b64decode(decode(body, FittedBody).safetensors, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("'safetensors' must be base64.", param="safetensors") from None


async def fitted(gateway: CurrentGateway, name: Name, kind: FittedKind) -> Response:
    data = await gateway.services.routers.model(name, kind)
    text = await asyncio.to_thread(base64.b64encode, data)
    return json_answer(FittedView(name=name, kind=kind, safetensors=text.decode()))


async def remove(gateway: CurrentGateway, name: Name, force: Annotated[bool, Query()] = False) -> Response:
    """Refused while aliases point to it."""
    await gateway.services.routers.remove(name, force=force)
    return json_answer(RouterDeletedView(name=name))


async def set_alias(gateway: CurrentGateway, name: Name, alias: str, body: AliasBody) -> Response:
    return json_answer(await gateway.services.routers.change(name, SetAlias(alias, body.version)))


async def remove_alias(gateway: CurrentGateway, name: Name, alias: str) -> Response:
    return json_answer(await gateway.services.routers.change(name, RemoveAlias(alias)))


async def rollback(gateway: CurrentGateway, name: Name, body: RollbackBody | None = None) -> Response:
    """Make the version before the current one, or the one that is named, the current one."""
    return json_answer(await gateway.services.routers.change(name, Rollback(body.version if body else None)))


async def route(request: Request, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Whom a router would choose for this body, and why: the body of a request, and `endpoint` beside it."""
    data = parse_object(await read_body(request, gateway.services.settings.max_json))
    path = data.pop("endpoint", "/v1/chat/completions")
    endpoint = EXPLAINED.get(path) if isinstance(path, str) else None
    if endpoint is None:
        raise BadRequest(f"'endpoint' must be one of {', '.join(EXPLAINED)}.", param="endpoint")
    context, body = hints.read(context, path, msgspec.json.encode(data))
    parsed = endpoint.parse(body, {})
    router = await gateway.services.routers.ready(parsed.model_ref.name)
    if router is None:
        name = quoted(str(parsed.model_ref.name))
        raise NotFound(f"{name} is no router; GET /v1/routers lists them.", code="router_not_found", param="model")
    began = time.perf_counter()
    _, decision = await gateway.dispatcher.explain(router, path, parsed.calls(None), parsed.model_ref, context)
    took = (time.perf_counter() - began) * 1e3
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
        headers={"Server-Timing": f"decide;dur={took:.3f}"},
    )


async def report(
    gateway: CurrentGateway,
    context: CurrentContext,
    name: Name,
    days: Annotated[float, Query(gt=0, le=366)] = 7.0,
) -> Response:
    """What came of its decisions, with what POST /v1/feedback has told. Of its ledger a team sees its own."""
    router = gateway.services.routers.show(name).name
    database, team = gateway.services.usage.database(), gateway.services.usage.visible_team(context.caller, None)

    def build_report() -> ReportView:  # of 200,000 rows it takes seconds
        rows = routed_requests(database, router, time.time() - days * 86400, team)
        return ReportView(router=router, days=days, requests=len(rows), outcomes=outcomes(rows), replay=replay(rows))

    return json_answer(await gateway.services.usage.threads.run(build_report))


def _kept(done: RouterAddition) -> Response:
    view = {**msgspec.structs.asdict(done.router), "new": done.is_new}
    return json_answer(view, 201 if done.is_new else 200, {"Location": f"/v1/routers/{done.router.name}"})


ROUTES: list[Route] = [
    ("/v1/route", route, ["POST"]),
    ("/v1/routers", list_, ["GET"]),
    ("/v1/routers", put, ["POST"]),
    ("/v1/routers/{name}", show, ["GET"]),
    ("/v1/routers/{name}", remove, ["DELETE"]),
    ("/v1/routers/{name}/aliases/{alias}", set_alias, ["PUT"]),
    ("/v1/routers/{name}/aliases/{alias}", remove_alias, ["DELETE"]),
    ("/v1/routers/{name}/rollback", rollback, ["POST"]),
    ("/v1/routers/{name}/report", report, ["GET"]),
    (FITTED, fitted, ["GET"]),
    (FITTED, fit, ["PUT"]),
]
