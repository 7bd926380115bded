"""A project's spend limit: the most that its team may cost in a month.

Amounts are in hundredths of the server's currency, as OpenAI's are in cents.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from registry.errors import BadRequest, NotFound
from runtime.gateway.core import Gateway
from runtime.http.admin.answers import json_answer
from runtime.http.bodies import WHOLE
from runtime.http.middleware import CurrentGateway
from runtime.http.organization.pages import OBJECT, admin_route
from runtime.http.organization.projects import ONE
from tenants.limits.records import MICRO, Kind, Limit, Mode

if TYPE_CHECKING:
    from tenants.watch import Tables

SPEND = f"{ONE}/spend_limit"
_CENT = MICRO // 100


class SpendBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    threshold_amount: Annotated[
        int, Field(strict=True, ge=0, le=10**9, description="hundredths of the currency"), WHOLE
    ]
    currency: str
    interval: Literal["month"]


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


@admin_route("GET", SPEND, answer=OBJECT)
async def get_spend_limit(project: str, gateway: CurrentGateway) -> Response:
    """Show the limit of a month's costs."""
    return json_answer(_spend(await gateway.services.administration.do(lambda t: _find_spend(t, project)), gateway))


@admin_route("POST", SPEND, answer=OBJECT, body=SpendBody)
async def set_spend_limit(project: str, body: SpendBody, gateway: CurrentGateway) -> Response:
    """Set the limit of a month's costs.

    A request that could exceed it is refused until the month ends in the team's time zone.
    """
    if body.currency != gateway.services.usage.currency:
        raise BadRequest(f"This server's currency is {gateway.services.usage.currency}.", param="currency")

    def work(tables: "Tables") -> Limit:
        team = tables.keys.team(project).id
        return tables.limits.set(Limit("", "team", team, Kind.MONTH, body.threshold_amount * _CENT))

    return json_answer(_spend(await gateway.services.administration.do(work), gateway))


@admin_route("DELETE", SPEND, answer=OBJECT)
async def delete_spend_limit(project: str, gateway: CurrentGateway) -> Response:
    """Remove the limit of a month's costs."""
    await gateway.services.administration.do(lambda tables: tables.limits.remove(_find_spend(tables, project).id))
    return json_answer({"object": "project.spend_limit.deleted", "deleted": True})
