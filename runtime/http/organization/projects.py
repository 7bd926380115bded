"""`/v1/organization/projects`: teams. A project's id is the team's: made from its name."""

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from registry.errors import BadRequest, Conflict
from registry.names import DEFAULT_TEAM
from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentGateway
from runtime.http.organization.pages import LIST, OBJECT, After, Count, admin_route, page

if TYPE_CHECKING:
    from tenants.keys.records import Team
    from tenants.watch import Tables

PROJECTS = "/v1/organization/projects"
ONE = f"{PROJECTS}/{{project}}"


class ProjectBody(BaseModel):
    """A project. Fields that only mean something at OpenAI are refused."""

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
    teams = await gateway.services.administration.do(lambda tables: tables.keys.list_teams())
    gone = [] if include_archived else [team.id for team in teams if team.archived is not None]
    return page([project_view(team) for team in teams], after, limit, gone)


@admin_route("POST", PROJECTS, answer=OBJECT, body=ProjectBody)
async def create_project(body: ProjectBody, gateway: CurrentGateway) -> Response:
    """Create a team.

    Its id is made from the name: 'Search and ranking' becomes `search-and-ranking`; a name without a letter a-z or
    digit becomes `project`.
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
            except Conflict:  # somebody has just made it
                continue

    return json_answer(project_view(await gateway.services.administration.do(work)))


@admin_route("GET", ONE, answer=OBJECT)
async def get_project(project: str, gateway: CurrentGateway) -> Response:
    """Show a team."""
    return json_answer(project_view(await gateway.services.administration.do(lambda tables: tables.keys.team(project))))


@admin_route("POST", ONE, answer=OBJECT, body=ProjectBody)
async def edit_project(project: str, body: ProjectBody, gateway: CurrentGateway) -> Response:
    """Rename a team; its id stays."""
    team = await gateway.services.administration.do(lambda tables: tables.keys.edit_team(project, name=body.name))
    return json_answer(project_view(team))


@admin_route("POST", f"{ONE}/archive", answer=OBJECT)
async def archive_project(project: str, gateway: CurrentGateway) -> Response:
    """Refuse all keys of a team from now on."""

    def work(tables: "Tables") -> "Team":
        tables.keys.check_admin_remains(lambda key: key.team == project != DEFAULT_TEAM)
        return tables.keys.archive(project, True)

    return json_answer(project_view(await gateway.services.administration.do(work)))
