"""Usage of teams, by day and at providers' prices, and feedback on answers."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from fastapi import Query
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from runtime.http.admin.bodies import json_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import CONFLICT, MANAGEMENT, STRING
from tenants.caller import Scope
from tenants.ledger.view import FIELDS, UsageReportView, UsedView

route = RouteGroup("Organization")

Team = Annotated[str | None, Query(description="One team; with the scope `admin` any, else the key's own")]
Date = Annotated[str | None, Query(description="A day in UTC, such as 2026-11-23; left out: today")]
Begin = Annotated[str | None, Query(alias="from", description="A day, or seconds since the epoch")]
End = Annotated[str | None, Query(alias="to", description="The same; not part of it")]


POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@route(
    "GET",
    "/v1/usage",
    scope=(Scope.ADMIN, Scope.USAGE),
    answer={"application/json": UsageReportView, "text/csv": STRING},
    errors=(*MANAGEMENT, 503),
)
async def get_usage(
    gateway: CurrentGateway,
    context: CurrentContext,
    team_id: Team = None,
    date: Date = None,
    begin: Begin = None,
    end: End = None,
    group_by: Annotated[
        list[str] | None,
        Query(description="team, key, model, adapter, class, endpoint, hour, day; commas, or repeated"),
    ] = None,
    format: Annotated[Literal["json", "csv"], Query()] = "json",
) -> Response:
    """Show what teams used.

    Requests, tokens and costs, summed by hours.
    """
    report = await gateway.services.usage.ask(context.caller, team_id, date, begin, end, group_by or [])
    if format == "json":
        return json_answer(report)
    grouped = {FIELDS[word] for word in report.group_by}
    columns = [name for name in UsedView.__struct_fields__ if name in grouped or name not in FIELDS.values()]
    return _csv([columns, *([getattr(one, column) for column in columns] for one in report.data)])


@route(
    "GET",
    "/v1/usage/daily",
    scope=(Scope.ADMIN, Scope.USAGE),
    answer={"application/json": "OrganizationObject", "text/csv": STRING, "text/html": STRING},
    errors=(*MANAGEMENT, 503),
)
async def get_usage_of_day(
    gateway: CurrentGateway,
    context: CurrentContext,
    team_id: Team = None,
    date: Annotated[str | None, Query(description="A day of the team's own zone; left out: yesterday")] = None,
    format: Annotated[Literal["json", "csv", "html"], Query()] = "json",
) -> Response:
    """Show a team's day.

    Totals, by hour, and by model, adapter and class.
    """
    day = await gateway.services.usage.day(context.caller, team_id, date)
    from tenants.costs.daily import as_json, as_rows, page_of

    if format == "html":
        return HTMLResponse(page_of(day), headers={"Content-Security-Policy": POLICY})
    return _csv(as_rows(day)) if format == "csv" else json_answer(as_json(day))


@route(
    "GET",
    "/v1/usage/comparison",
    scope=(Scope.ADMIN, Scope.USAGE),
    answer="OrganizationObject",
    errors=(*MANAGEMENT, 503),
)
async def compare_usage(
    gateway: CurrentGateway,
    context: CurrentContext,
    team_id: Team = None,
    date: Date = None,
    begin: Begin = None,
    end: End = None,
) -> Response:
    """Show what the same usage would cost at providers' prices.

    The prices are those of --provider-prices. The saving is in percent.
    """
    rows = await gateway.services.usage.compare(context.caller, team_id, date, begin, end)
    about = {"object": "usage.comparison", "currency": gateway.services.usage.currency}
    return json_answer({**about, "data": [row.fields for row in rows]})


class FeedbackBody(BaseModel):
    """A verdict on an answer."""

    model_config = ConfigDict(extra="forbid")
    request_id: str = Field(min_length=1, max_length=128, description="the answer's X-Request-Id")
    accepted: bool = Field(strict=True)


@route(
    "POST", "/v1/feedback", scope=Scope.INFER, answer="OrganizationObject", body=FeedbackBody, errors=(*CONFLICT, 503)
)
async def send_feedback(body: FeedbackBody, gateway: CurrentGateway, context: CurrentContext) -> Response:
    """Report whether an answer was useful.

    Stored with the request's costs. A second report replaces the first.
    """
    model = await gateway.services.usage.judge(context.caller, body.request_id, body.accepted)
    if model is not None:
        gateway.services.overview.judged(model, body.accepted)
    return json_answer({"object": "feedback", "request_id": body.request_id, "accepted": body.accepted})


def _csv(rows: Iterable[Sequence[object]]) -> Response:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8")
