"""`/v1/organization/projects`: teams. A project's id is the team's id, which is made from its name.

A project's spend limit is its team's largest cost per month. Amounts are in hundredths of the server's currency, like
OpenAI's cents.
"""

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from registry.errors import BadRequest, Conflict, NotFound
from registry.names import DEFAULT_TEAM
from runtime.gateway.core import Gateway
from runtime.http.admin.bodies import json_answer
from runtime.http.bodies import WHOLE
from runtime.http.middleware import CurrentGateway
from runtime.http.organization.pages import LIST, OBJECT, After, Count, admin_route, page
from tenants.limits.records import MICRO, Kind, Limit, Mode

if TYPE_CHECKING:
    from tenants.keys.records import Team
    from tenants.watch import Tables

PROJECTS = "/v1/organization/projects"
ONE = f"{PROJECTS}/{{project}}"


class ProjectBody(BaseModel):
    """A project. Fields that only have a meaning at OpenAI are refused."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=128)


def project_view(team: "Team") -> Mapping[str, Any]:
    return {
        "object": "organization.project", "id": team.id, "name": team.name, "created_at": int(team.created),
        "archived_at": None if team.archived is None else int(team.archived),
        "status": "archived" if team.archived is not None else "active",
    }  # fmt: skip


@admin_route("GET", PROJECTS, answer=LIST)
async def list_projects(
    gateway: CurrentGateway, after: After = None, limit: Count = 20, include_archived: bool = False
) -> Response:
    """List teams, the oldest first."""

    def work(tables: "Tables") -> Response:
        teams = tables.keys.list_teams()
        gone = {team.id for team in teams if team.archived is not None and not include_archived}
        return page([project_view(team) for team in teams], after, limit, gone)

    return await gateway.services.administration.do(work)


@admin_route("POST", PROJECTS, answer=OBJECT, body=ProjectBody)
async def create_project(body: ProjectBody, gateway: CurrentGateway) -> Response:
    """Create a team.

    Its id is made from the name: 'Search and ranking' becomes `search-and-ranking`. A name without letters a-z and
    digits becomes `project`.
    """

    def work(tables: "Tables") -> "Team":
        taken = {team.id for team in tables.keys.list_teams()}
        base = re.sub(r"[^a-z0-9]+", "-", body.name.lower()).strip("-")[:56] or "project"
        if not any(map(str.isalnum, body.name)):
            raise BadRequest("A project's name has a letter or a digit: give it one.", param="name")
        names = itertools.chain((base,), (f"{base}-{n}" for n in itertools.count(2)))
        while True:
            try:
                return tables.keys.create_team(next(name for name in names if name not in taken), body.name)
            except Conflict:  # another request has just created it
                continue

    return json_answer(project_view(await gateway.services.administration.do(work)))


@admin_route("GET", ONE, answer=OBJECT)
async def get_project(project: str, gateway: CurrentGateway) -> Response:
    """Show a team."""
    return json_answer(project_view(await gateway.services.administration.do(lambda tables: tables.keys.team(project))))


@admin_route("POST", ONE, answer=OBJECT, body=ProjectBody)
async def edit_project(project: str, body: ProjectBody, gateway: CurrentGateway) -> Response:
    """Rename a team. Its id does not change."""
    team = await gateway.services.administration.do(lambda tables: tables.keys.edit_team(project, name=body.name))
    return json_answer(project_view(team))


@admin_route("POST", f"{ONE}/archive", answer=OBJECT)
async def archive_project(project: str, gateway: CurrentGateway) -> Response:
    """Archive a team, which disables all its keys."""

    def work(tables: "Tables") -> "Team":
        tables.keys.check_admin_remains(lambda key: key.team == project != DEFAULT_TEAM)
        return tables.keys.archive(project, True)

    return json_answer(project_view(await gateway.services.administration.do(work)))


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
    for limit in tables.limits.all("team", tables.keys.team(project).id):
        if limit.kind is Kind.MONTH and limit.mode is not Mode.WARN and not limit.model:
            return limit
    raise NotFound("This project has no spend limit.", code="limit_not_found")


@admin_route("GET", SPEND, answer=OBJECT)
async def get_spend_limit(project: str, gateway: CurrentGateway) -> Response:
    """Show the limit on monthly costs."""
    return json_answer(_spend(await gateway.services.administration.do(lambda t: _find_spend(t, project)), gateway))


@admin_route("POST", SPEND, answer=OBJECT, body=SpendBody)
async def set_spend_limit(project: str, body: SpendBody, gateway: CurrentGateway) -> Response:
    """Set the limit on monthly costs.

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
    """Remove the limit on monthly costs."""
    await gateway.services.administration.do(lambda tables: tables.limits.remove(_find_spend(tables, project).id))
    return json_answer({"object": "project.spend_limit.deleted", "deleted": True})
