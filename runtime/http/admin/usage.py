"""`GET /v1/usage`: what teams used."""

from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from runtime.http.admin.answers import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route


async def usage(
    gateway: CurrentGateway,
    context: CurrentContext,
    team_id: Annotated[
        str | None, Query(description="One team; with the scope `admin` any, else the key's own")
    ] = None,
    date: Annotated[str | None, Query(description="A day in UTC, such as 2026-11-23; left out: today")] = None,
    begin: Annotated[str | None, Query(alias="from", description="A day, or seconds since the epoch")] = None,
    end: Annotated[str | None, Query(alias="to", description="The same; not part of it")] = None,
    group_by: Annotated[
        list[str] | None,
        Query(description="team, key, model, adapter, class, endpoint, hour, day; commas, or repeated"),
    ] = None,
) -> Response:
    """Requests and tokens, summed up; whole hours count."""
    return json_answer(await gateway.usage.ask(context.caller, team_id, date, begin, end, group_by or []))


ROUTES: list[Route] = [("/v1/usage", usage, ["GET"])]
