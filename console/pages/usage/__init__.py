"""Usage: what teams used, from the ledger's hourly sums."""

import asyncio
import csv
import io
import time

import msgspec

from console.host import Context, Page, Visit
from registry.errors import BadRequest, NotFound
from tenants.caller import Scope
from tenants.ledger.view import FIELDS, UsageReportView, UsedView

SPANS = {
    "24h": (86_400, "24 hours"),
    "7d": (7 * 86_400, "7 days"),
    "30d": (30 * 86_400, "30 days"),
}
BY = ("model", "adapter", "team", "key", "endpoint", "class", "hour", "day")
MAX_ROWS = 200
"""Most rows of the table. The CSV file has all."""
PER_ACCEPTED = "cost_per_accepted"
DAY = 86_400
DAYS = 8 * DAY
"""Curves over more than this time have a point per day."""


async def context(visit: Visit) -> Context:
    query = visit.request.query_params
    span = query.get("span") if query.get("span") in SPANS else "24h"
    by = query.get("by") if query.get("by") in BY else "model"
    seconds, _ = SPANS[str(span)]
    end = int(time.time()) // 3600 * 3600 + 3600
    window = {"from": str(end - seconds), "to": str(end)}
    values: dict[str, object] = {
        "span": span,
        "by": by,
        "spans": SPANS,
        "bys": BY,
        "field": FIELDS[str(by)],
        "rows": [],
    }
    values |= {"is_kept": True, "series": "[]", "csv": "", "window": window}
    values |= {"currency": "", "total": None, "compared": [], "why_not": ""}
    try:  # concurrently: each reads all sums of that time
        rows, hours, compared = await asyncio.gather(
            _used(visit, window, str(by)), _used(visit, window, "hour"), _compared(visit, window)
        )
    except NotFound:
        return values | {"is_kept": False}
    by_time = by in ("hour", "day")
    ordered = rows.data[::-1] if by_time else sorted(rows.data, key=lambda row: row.requests, reverse=True)
    values |= {"currency": rows.currency, "total": added(rows.data)}
    values |= {"more": max(0, len(ordered) - MAX_ROWS), "by_time": by_time, **compared}
    columns = [list(column) for column in zip(*_points(hours, DAY if seconds > DAYS else 3600), strict=True)]
    series = msgspec.json.encode(columns).decode()
    return values | {"rows": ordered[:MAX_ROWS], "series": series, "csv": _csv(rows, FIELDS[str(by)])}


async def _used(visit: Visit, window: dict[str, str], by: str) -> UsageReportView:
    return await visit.host.usage.ask(visit.caller, None, None, window["from"], window["to"], [by])


async def _compared(visit: Visit, window: dict[str, str]) -> Context:
    """Return the same traffic at providers' prices, or why there is no comparison."""
    try:
        return {"compared": await visit.host.usage.compare(visit.caller, None, None, window["from"], window["to"])}
    except (NotFound, BadRequest) as error:
        return {"why_not": error.message}


def _points(hours: UsageReportView, step: int) -> list[tuple[int, int, int, int]]:
    """Return time, requests, input and output tokens, for steps with any usage."""
    totals: dict[int, tuple[int, int, int]] = {}
    for row in hours.data:
        assert isinstance(row.hour, int)
        at = row.hour - row.hour % step
        requests, tokens_in, tokens_out = totals.get(at, (0, 0, 0))
        totals[at] = (requests + row.requests, tokens_in + row.input_tokens, tokens_out + row.output_tokens)
    return [(at, *sums) for at, sums in sorted(totals.items())]


def added(rows: list[UsedView]) -> UsedView:
    """Return the sum of all rows."""
    names = [name for name in UsedView.__struct_fields__ if name not in FIELDS.values() and name != PER_ACCEPTED]
    sums = {name: sum(getattr(row, name) for row in rows) for name in names}
    return UsedView(**sums, cost_per_accepted=sums["cost"] / sums["accepted"] if sums["accepted"] else None)


def _csv(report: UsageReportView, field: str) -> str:
    """Return the file behind the download link."""
    out = io.StringIO()
    names = (
        [field, *(name for name in report.data[0].__struct_fields__ if name not in FIELDS.values())]
        if report.data
        else []
    )
    writer = csv.writer(out)
    writer.writerow(names)
    for row in report.data:
        values = [getattr(row, name) for name in names]
        writer.writerow([_plain(value) for value in values])
    return out.getvalue()


def _plain(value: object) -> object:
    """Escape a text that a spreadsheet would interpret as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


PAGE = Page("Usage", 60, frozenset((Scope.USAGE, Scope.ADMIN)), context)
