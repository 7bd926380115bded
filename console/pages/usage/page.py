"""Usage: what teams used, from the ledger's sums of hours."""

import csv
import io
import time
from urllib.parse import urlencode

import msgspec

from console.host import Context, Page, Visit
from registry.errors import BadRequest, NotFound
from tenants.caller import Scope
from tenants.ledger.view import FIELDS, UsageReportView

SPANS = {
    "24h": (86_400, "hour", "24 hours"),
    "7d": (7 * 86_400, "hour", "7 days"),
    "30d": (30 * 86_400, "day", "30 days"),
}
BY = ("model", "adapter", "team", "key", "endpoint", "class", "hour", "day")
SHOWN = 200
"""Rows of the table; the CSV has all."""


async def context(visit: Visit) -> Context:
    asked = visit.request.query_params
    span = asked.get("span") if asked.get("span") in SPANS else "24h"
    by = asked.get("by") if asked.get("by") in BY else "model"
    seconds, step, _ = SPANS[str(span)]
    end = int(time.time()) // 3600 * 3600 + 3600
    window = {"from": str(end - seconds), "to": str(end)}
    found: dict[str, object] = {"span": span, "by": by, "spans": SPANS, "bys": BY, "field": FIELDS[str(by)], "rows": []}
    found |= {"is_kept": True, "series": "[]", "csv": "", "query": urlencode({**window, "group_by": by})}
    found |= {"currency": "", "total": None, "compared": [], "why_not": ""}
    try:
        rows = await _used(visit, window, [str(by)])
        hours = rows if by == step else await _used(visit, window, [step])
        [total] = (await _used(visit, window, [])).data
    except NotFound:
        return found | {"is_kept": False}
    by_time = by in ("hour", "day")
    ordered = rows.data[::-1] if by_time else sorted(rows.data, key=lambda row: row.requests, reverse=True)
    found |= {"currency": rows.currency, "total": total, "more": max(0, len(ordered) - SHOWN), "by_time": by_time}
    try:
        compared = await visit.host.usage.compare(visit.caller, None, None, window["from"], window["to"])
    except (NotFound, BadRequest) as error:
        found |= {"why_not": error.message}
    else:
        found |= {"compared": compared}
    points = [[getattr(row, step), row.requests, row.input_tokens, row.output_tokens] for row in hours.data]
    columns = [list(column) for column in zip(*points, strict=True)] if points else []
    series = msgspec.json.encode(columns).decode()
    return found | {"rows": ordered[:SHOWN], "series": series, "csv": _csv(rows, FIELDS[str(by)])}


async def _used(visit: Visit, window: dict[str, str], by: list[str]) -> UsageReportView:
    return await visit.host.usage.ask(visit.caller, None, None, window["from"], window["to"], by)


def _csv(report: UsageReportView, field: str) -> str:
    """What the link downloads."""
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
    """A text that a spreadsheet would take for a formula is made one that it does not."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


PAGE = Page("Usage", 60, frozenset((Scope.USAGE, Scope.ADMIN)), context)
