"""OpenAI's webhook endpoints, for the four events of batches.

A secret is shown when its webhook is created. Whoever reads or rotates one later could sign events in the server's
name, so that needs the scope `admin`, for any team.
"""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from batches.callbacks.records import EVENTS, MOST_URL, Webhook
from registry.errors import BadRequest
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.http.admin.bodies import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.organization.pages import LIST, After, Count, list_answer
from runtime.http.route import RouteGroup
from runtime.http.schema import (
    BOOLEAN,
    CONFLICT,
    COUNT,
    INTEGER,
    MANAGEMENT,
    STRING,
    array,
    component,
    nullable,
    one_of,
    record,
)  # fmt: skip
from tenants.caller import Scope

route = partial(RouteGroup("Webhooks"), errors=(*MANAGEMENT, 429, 503))
PATH = "/v1/webhook_endpoints"
NAMES = tuple(EVENTS.values())
HINT = 4
"""Last characters of a secret that are shown later."""
_ENDPOINT = {
    "id": STRING,
    "object": {"const": "webhook_endpoint"},
    "created_at": COUNT,
    "updated_at": COUNT,
    "name": STRING,
    "url": STRING,
    "event_types": array(one_of(*NAMES)),
    "signing_secret_hint": STRING,
}
ENDPOINT = component("WebhookEndpoint", record(_ENDPOINT))
WITH_SECRET = component(
    "WebhookEndpointWithSecret",
    record({**_ENDPOINT, "signing_secret": {**STRING, "description": "Shown only here and after a rotation."}}),
)
DELETED = component(
    "WebhookEndpointDeleted",
    record({"id": STRING, "object": {"const": "webhook_endpoint.deleted"}, "deleted": BOOLEAN}),
)
TESTED = component(
    "WebhookEndpointTest",
    record(
        {
            "object": {"const": "webhook_endpoint.test"},
            "webhook_endpoint_id": STRING,
            "event_type": STRING,
            "status_code": INTEGER,
            "success": {"const": True},
        }
    ),
)
TYPES = component("WebhookEventTypes", record({"object": {"const": "list"}, "data": array(STRING)}))
CALLBACK_SECRET = component(
    "CallbackSecret",
    record(
        {
            "object": {"const": "callback_secret"},
            "signing_secret": STRING,
            "created_at": COUNT,
            "updated_at": COUNT,
            "previous_until": {**nullable(COUNT), "description": "Until when the former secret signs too."},
        }
    ),
)
EventType = Literal["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=32)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
WebhookUrl = Annotated[str, Field(min_length=1, max_length=MOST_URL)]
Id = Annotated[str, Path(alias="webhook_endpoint_id", max_length=128)]
TeamId = Annotated[str | None, Query(max_length=64, description="Default: the key's own team")]


class WebhookBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    event_types: EventTypes
    name: Name
    url: WebhookUrl = Field(description="https, and no private address unless --callback-networks allows it")


class WebhookChange(BaseModel):
    model_config = ConfigDict(extra="forbid")
    event_types: EventTypes | None = None
    name: Name | None = None
    url: WebhookUrl | None = None


class RotationBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keep_old_secret_active_for_24_hours: bool = False


class CallbackRotationBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keep_old_secret_active_for_24_hours: bool = True


class WebhookTestBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    event_type: EventType


@route("GET", "/v1/webhook_event_types", scope=Scope.INFER, answer=TYPES, errors=MANAGEMENT)
async def list_webhook_event_types() -> Response:
    """List the events that webhooks can get."""
    return json_answer({"object": "list", "data": list(NAMES)})


@route("POST", PATH, scope=Scope.INFER, answer=WITH_SECRET, body=WebhookBody, errors=(*CONFLICT, 429, 503))
async def create_webhook_endpoint(gateway: CurrentGateway, context: CurrentContext, body: WebhookBody) -> Response:
    """Create a webhook.

    Its URL gets the events of all batches of the team, signed as Standard Webhooks with its own secret.
    """
    webhook = await gateway.services.batches.callbacks.create(
        context.caller.team, body.name, body.url, body.event_types
    )
    return json_answer(_with_secret(webhook))


@route("GET", PATH, scope=Scope.INFER, answer=LIST)
async def list_webhook_endpoints(
    gateway: CurrentGateway,
    context: CurrentContext,
    after: After = None,
    limit: Count = 20,
) -> Response:
    """List webhooks, the newest first."""
    webhooks, more = await gateway.services.batches.callbacks.list(context.caller.team, after, limit)
    return list_answer([_view(webhook) for webhook in webhooks], more)


@route("GET", f"{PATH}/{{webhook_endpoint_id}}", scope=Scope.INFER, answer=ENDPOINT)
async def get_webhook_endpoint(gateway: CurrentGateway, context: CurrentContext, webhook_endpoint_id: Id) -> Response:
    """Show a webhook."""
    return json_answer(_view(await gateway.services.batches.callbacks.get(context.caller.team, webhook_endpoint_id)))


@route("POST", f"{PATH}/{{webhook_endpoint_id}}", scope=Scope.INFER, answer=ENDPOINT, body=WebhookChange)
async def update_webhook_endpoint(
    gateway: CurrentGateway, context: CurrentContext, webhook_endpoint_id: Id, body: WebhookChange
) -> Response:
    """Change a webhook.

    Deliveries that wait go to a new URL too.
    """
    changed = await gateway.services.batches.callbacks.update(
        context.caller.team, webhook_endpoint_id, name=body.name, url=body.url, events=body.event_types
    )
    return json_answer(_view(changed))


@route("DELETE", f"{PATH}/{{webhook_endpoint_id}}", scope=Scope.INFER, answer=DELETED)
async def delete_webhook_endpoint(
    gateway: CurrentGateway, context: CurrentContext, webhook_endpoint_id: Id
) -> Response:
    """Delete a webhook.

    Deliveries that wait are not sent any more.
    """
    await gateway.services.batches.callbacks.delete(context.caller.team, webhook_endpoint_id)
    return json_answer({"id": webhook_endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True})


@route(
    "POST", f"{PATH}/{{webhook_endpoint_id}}/rotate_secret", scope=Scope.ADMIN, answer=WITH_SECRET, body=RotationBody
)
async def rotate_webhook_secret(
    gateway: CurrentGateway,
    context: CurrentContext,
    webhook_endpoint_id: Id,
    body: RotationBody,
    team_id: TeamId = None,
) -> Response:
    """Give a webhook a new secret.

    With `keep_old_secret_active_for_24_hours`, events are signed with both for a day.
    """
    team = await _team(gateway, context, team_id)
    rotated = await gateway.services.batches.callbacks.rotate(
        team, webhook_endpoint_id, keeps_previous=body.keep_old_secret_active_for_24_hours
    )
    return json_answer(_with_secret(rotated))


@route("POST", f"{PATH}/{{webhook_endpoint_id}}/test", scope=Scope.INFER, answer=TESTED, body=WebhookTestBody)
async def test_webhook_endpoint(
    gateway: CurrentGateway, context: CurrentContext, webhook_endpoint_id: Id, body: WebhookTestBody
) -> Response:
    """Send a sample event now.

    It names a batch that does not exist. `status_code` is what the URL answered.
    """
    outcome = await gateway.services.batches.callbacks.test(context.caller.team, webhook_endpoint_id, body.event_type)
    if outcome.status is None:
        raise BadRequest(f"The webhook's URL gave no answer. {outcome.error}", code="webhook_unreachable")
    answer = {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": webhook_endpoint_id,
        "event_type": body.event_type,
        "status_code": outcome.status,
        "success": True,
    }
    return json_answer(answer)


@route("GET", "/v1/callback_secret", scope=Scope.ADMIN, answer=CALLBACK_SECRET)
async def get_callback_secret(gateway: CurrentGateway, context: CurrentContext, team_id: TeamId = None) -> Response:
    """Show the secret that signs a team's callbacks.

    It is made with the team's first batch that has a `callback_url`.
    """
    team = await _team(gateway, context, team_id)
    return json_answer(_secret_view(await gateway.services.batches.callbacks.signer(team)))


@route("POST", "/v1/callback_secret/rotate", scope=Scope.ADMIN, answer=CALLBACK_SECRET, body=CallbackRotationBody)
async def rotate_callback_secret(
    gateway: CurrentGateway, context: CurrentContext, body: CallbackRotationBody, team_id: TeamId = None
) -> Response:
    """Give a team's callbacks a new secret.

    For a day they are signed with both, unless `keep_old_secret_active_for_24_hours` is false.
    """
    team = await _team(gateway, context, team_id)
    rotated = await gateway.services.batches.callbacks.rotate_signer(
        team, keeps_previous=body.keep_old_secret_active_for_24_hours
    )
    return json_answer(_secret_view(rotated))


async def _team(gateway: Gateway, context: RequestContext, team_id: str | None) -> str:
    """The team of a call. Raises NotFound for one that does not exist."""
    if team_id is None or team_id == context.caller.team:
        return context.caller.team
    return str((await gateway.services.administration.do(lambda tables: tables.keys.team(team_id))).id)


def _view(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "object": "webhook_endpoint",
        "created_at": int(webhook.created),
        "updated_at": int(webhook.updated),
        "name": webhook.name,
        "url": webhook.url,
        "event_types": list(webhook.events),
        "signing_secret_hint": f"whsec_…{webhook.secret[-HINT:]}",
    }


def _with_secret(webhook: Webhook) -> dict[str, Any]:
    return {**_view(webhook), "signing_secret": webhook.secret}


def _secret_view(signer: Webhook) -> dict[str, Any]:
    until = signer.previous_until
    return {
        "object": "callback_secret",
        "signing_secret": signer.secret,
        "created_at": int(signer.created),
        "updated_at": int(signer.updated),
        "previous_until": None if until is None else int(until),
    }
