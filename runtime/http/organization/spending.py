"""Rate limits of a project by model, its spend limit of a month, and spend alerts.

Amounts of money are in hundredths of the server's currency, as OpenAI's are in cents. An alert is a limit that warns:
an answer's header and the log say so. Its recipients are kept and told; no mail is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from registry.base.wording import quoted
from registry.errors import BadRequest, NotFound
from runtime.gateway.core import Gateway
from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentGateway
from runtime.http.organization.pages import After, Count, Order, page
from runtime.http.organization.projects import ONE
from runtime.http.sending import Route
from tenants.caller import EVERYBODY
from tenants.limits.records import MICRO, Kind, Limit, Mode

if TYPE_CHECKING:
    from tenants.watch import Tables

RATES, SPEND, ALERTS = f"{ONE}/rate_limits", f"{ONE}/spend_limit", f"{ONE}/spend_alerts"
UNLIMITED = 1_000_000_000
"""What is told, and taken, where there is no limit: OpenAI's type has a number there."""
EVERY = "*"
"""In the place of a model: all of them together."""
_CENT = MICRO // 100
_FIELDS = {"max_requests_per_1_minute": Kind.REQUESTS, "max_tokens_per_1_minute": Kind.TOKENS}


class RateBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    max_requests_per_1_minute: int | None = Field(default=None, strict=True, ge=1, le=UNLIMITED)
    max_tokens_per_1_minute: int | None = Field(default=None, strict=True, ge=1, le=UNLIMITED)


class Channel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["email"]
    recipients: tuple[Annotated[str, Field(max_length=320)], ...] = Field(max_length=50)
    subject_prefix: str | None = Field(default=None, max_length=128)


class SpendBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    threshold_amount: int = Field(strict=True, ge=0, le=10**9, description="hundredths of the currency")
    currency: str
    interval: Literal["month"]


class AlertBody(SpendBody):
    notification_channel: Channel


# --- rate limits ----------------------------------------------------------------------------------------------------
def _rates(gateway: Gateway, limits: Sequence[Limit]) -> list[Mapping[str, Any]]:
    set_ = {(one.kind, one.model or EVERY): one.amount for one in limits if one.mode is Mode.ENFORCE}
    here, provider_models = gateway.services.models.views(), gateway.services.provider_models.cards(EVERYBODY)
    models = [EVERY, *sorted([*(view.id for view in here), *(card.id for card in provider_models)])]
    return [
        {
            "object": "project.rate_limit", "id": f"rl-{model}", "model": model,
            **{name: set_.get((kind, model), UNLIMITED) for name, kind in _FIELDS.items()},
        }
        for model in models
    ]  # fmt: skip


async def list_rates(
    project: str, gateway: CurrentGateway, after: After = None, before: str | None = None, limit: Count = 100
) -> Response:
    """Of each model, and of all of them together (`*`)."""
    _check_forward(before)
    found = await gateway.services.administration.do(
        lambda tables: tables.limits.all("team", tables.keys.team(project).id)
    )
    return page(_rates(gateway, found), after, limit)


def _check_forward(before: str | None) -> None:
    if before is not None:
        raise BadRequest("Pages go forward: use after.", param="before")


async def set_rate(project: str, rate_limit: str, body: RateBody, gateway: CurrentGateway) -> Response:
    """1,000,000,000 takes a limit away."""
    known = {row["model"] for row in _rates(gateway, ())}
    model = rate_limit.removeprefix("rl-")
    if model not in known:
        raise NotFound(f"There is no rate limit {quoted(rate_limit)}: they are 'rl-' and a model's id, or 'rl-*'.",
                       code="limit_not_found", param="rate_limit_id")  # fmt: skip

    def work(tables: "Tables") -> list[Limit]:
        team, of = tables.keys.team(project).id, "" if model == EVERY else model
        for name, kind in _FIELDS.items():
            amount = getattr(body, name)
            if amount == UNLIMITED:
                for one in tables.limits.all("team", team):
                    if (one.kind, one.model, one.mode) == (kind, of, Mode.ENFORCE):
                        tables.limits.remove(one.id)
            elif amount is not None:
                tables.limits.set(Limit("", "team", team, kind, amount, model=of))
        return tables.limits.all("team", team)

    rows = _rates(gateway, await gateway.services.administration.do(work))
    return json_answer(next(row for row in rows if row["model"] == model))


# --- the spend limit ------------------------------------------------------------------------------------------------
def _spend(limit: Limit, gateway: Gateway) -> Mapping[str, Any]:
    return {
        "object": "project.spend_limit", "threshold_amount": limit.amount // _CENT, "interval": "month",
        "currency": gateway.services.usage.currency,
        "enforcement": {"status": "enforcing" if limit.mode is Mode.ENFORCE else "inactive"},
    }  # fmt: skip


def _find_spend(tables: "Tables", project: str) -> Limit:
    """Raises NotFound."""
    for one in tables.limits.all("team", tables.keys.team(project).id):
        if one.kind is Kind.MONTH and one.mode is not Mode.WARN and not one.model:
            return one
    raise NotFound("This project has no spend limit.", code="limit_not_found")


async def show_spend(project: str, gateway: CurrentGateway) -> Response:
    return json_answer(_spend(await gateway.services.administration.do(lambda t: _find_spend(t, project)), gateway))


async def set_spend(project: str, body: SpendBody, gateway: CurrentGateway) -> Response:
    """Enforced: a request that could go beyond it is refused until the month ends where the team is."""
    _check_currency(body, gateway)

    def work(tables: "Tables") -> Limit:
        team = tables.keys.team(project).id
        return tables.limits.set(Limit("", "team", team, Kind.MONTH, body.threshold_amount * _CENT))

    return json_answer(_spend(await gateway.services.administration.do(work), gateway))


async def delete_spend(project: str, gateway: CurrentGateway) -> Response:
    await gateway.services.administration.do(lambda tables: tables.limits.remove(_find_spend(tables, project).id))
    return json_answer({"object": "project.spend_limit.deleted", "deleted": True})


def _check_currency(body: SpendBody, gateway: Gateway) -> None:
    if body.currency != gateway.services.usage.currency:
        raise BadRequest(f"This server's currency is {gateway.services.usage.currency}.", param="currency")


# --- alerts ---------------------------------------------------------------------------------------------------------
def _alert(limit: Limit, gateway: Gateway) -> Mapping[str, Any]:
    return {
        "object": "project.spend_alert", "id": limit.id, "threshold_amount": limit.amount // _CENT,
        "currency": gateway.services.usage.currency, "interval": "month",
        "notification_channel": {"type": "email", "recipients": list(limit.emails)},
    }  # fmt: skip


def _alerts(tables: "Tables", project: str) -> list[Limit]:
    found = tables.limits.all("team", tables.keys.team(project).id)
    return [one for one in found if one.kind is Kind.MONTH and one.mode is Mode.WARN]


def _find_alert(tables: "Tables", project: str, id_: str) -> Limit:
    """Raises NotFound."""
    for one in _alerts(tables, project):
        if one.id == id_:
            return one
    raise NotFound(f"There is no spend alert {quoted(id_)}.", code="limit_not_found", param="alert_id")


async def list_alerts(
    project: str,
    gateway: CurrentGateway,
    after: After = None,
    before: str | None = None,
    limit: Count = 20,
    order: Order = "asc",
) -> Response:
    _check_forward(before)
    found = await gateway.services.administration.do(lambda tables: _alerts(tables, project))
    return page([_alert(one, gateway) for one in (found if order == "asc" else found[::-1])], after, limit)


async def create_alert(project: str, body: AlertBody, gateway: CurrentGateway) -> Response:
    _check_alert(body, gateway)

    made = await gateway.services.administration.do(lambda t: t.limits.add(_alert_limit(body, t.keys.team(project).id)))
    return json_answer(_alert(made, gateway))


async def show_alert(project: str, alert: str, gateway: CurrentGateway) -> Response:
    return json_answer(
        _alert(await gateway.services.administration.do(lambda t: _find_alert(t, project, alert)), gateway)
    )


async def edit_alert(project: str, alert: str, body: AlertBody, gateway: CurrentGateway) -> Response:
    _check_alert(body, gateway)

    def work(tables: "Tables") -> Limit:
        old = _find_alert(tables, project, alert)
        return tables.limits.change(alert, lambda _: replace(_alert_limit(body, old.subject), id=alert))

    return json_answer(_alert(await gateway.services.administration.do(work), gateway))


async def delete_alert(project: str, alert: str, gateway: CurrentGateway) -> Response:
    await gateway.services.administration.do(
        lambda tables: tables.limits.remove(_find_alert(tables, project, alert).id)
    )
    return json_answer({"object": "project.spend_alert.deleted", "id": alert, "deleted": True})


def _alert_limit(body: AlertBody, team: str) -> Limit:
    emails = body.notification_channel.recipients
    return Limit("", "team", team, Kind.MONTH, body.threshold_amount * _CENT, Mode.WARN, emails=emails)


def _check_alert(body: AlertBody, gateway: Gateway) -> None:
    _check_currency(body, gateway)
    if body.notification_channel.subject_prefix:
        raise BadRequest("No mail is sent: leave subject_prefix out.", param="notification_channel.subject_prefix")


ROUTES: list[Route] = [
    (RATES, list_rates, ["GET"]),
    (f"{RATES}/{{rate_limit:path}}", set_rate, ["POST"]),
    (SPEND, show_spend, ["GET"]),
    (SPEND, set_spend, ["POST"]),
    (SPEND, delete_spend, ["DELETE"]),
    (ALERTS, list_alerts, ["GET"]),
    (ALERTS, create_alert, ["POST"]),
    (f"{ALERTS}/{{alert}}", show_alert, ["GET"]),
    (f"{ALERTS}/{{alert}}", edit_alert, ["POST"]),
    (f"{ALERTS}/{{alert}}", delete_alert, ["DELETE"]),
]
