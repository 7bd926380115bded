"""Requests: the latest ones, where their time went, and stored texts; all details of one request."""

from console.history import RequestRow
from console.host import Context, Page, Visit
from console.texts import Transcript
from registry.errors import BadRequest
from tenants.caller import SCOPES

MAX_ROWS = 40
"""Rows per load. Older ones are loaded when the viewer scrolls to them."""


async def context(visit: Visit) -> Context:
    query, console = visit.request.query_params, visit.host.console
    words = query.get("words", "")[:200]
    if query.get("part") == "texts":
        return {"found": _texts(visit)}
    if "id" in query and "part" not in query:
        return await _one(visit, query["id"])
    rows = console.history.rows(visit.team, words=words)
    older = _older_than(query["after"], rows) if "after" in query else rows
    return {
        "id": None,
        "rows": older[:MAX_ROWS],
        "is_older": "after" in query,
        "has_more": len(older) > MAX_ROWS,
        "texts": console.texts,
        "words": words,
        "all_teams": visit.team is None,
        "whole": _whole([row.total for row in rows]),
    }


async def _one(visit: Visit, id_: str) -> Context:
    """Return one request from memory and from the ledger, which has a row for each attempt."""
    console = visit.host.console
    row = console.history.find(id_, visit.team)
    return {
        "id": id_,
        "row": row,
        "ledger": await visit.host.usage.of_request(visit.team, id_),
        "found": None if row is None else console.texts.find(row.team, row.id, row.at),
        "currency": visit.host.usage.currency,
    }


def _older_than(after: str, rows: list[RequestRow]) -> list[RequestRow]:
    """Return rows older than the viewer's last one. after: `AT ID` of that row, which may be dropped by now."""
    return next((rows[n:] for n, row in enumerate(rows, 1) if after == f"{row.at} {row.id}"), [])


def _texts(visit: Visit) -> Transcript | None:
    """Return the transcript of the requested row, if the viewer may see its team."""
    query = visit.request.query_params
    try:
        at = float(query.get("at", ""))
    except ValueError:
        raise BadRequest("Send `at` as a number.", param="at") from None
    return visit.host.console.texts.find(visit.team or query.get("team", ""), query.get("id", ""), at)


def _whole(totals: list[float]) -> float:
    """Return the seconds of a full bar, ignoring outliers such as requests that waited for a load."""
    return sorted(totals)[int(0.8 * (len(totals) - 1))] if totals else 1.0


PAGE = Page("Requests", 50, SCOPES, context, frozenset(("rows", "texts")))
