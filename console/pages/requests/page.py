"""Requests: the last ones, each with where its time went. What was asked and answered is not kept."""

from console.host import Context, Page, Visit
from tenants.caller import SCOPES

SHOWN = 100


async def context(visit: Visit) -> Context:
    words = visit.request.query_params.get("words", "")[:200]
    rows = visit.host.console.history.rows(visit.team, SHOWN, words)
    return {
        "rows": rows,
        "words": words,
        "all_teams": visit.team is None,
        "longest": max((r.total for r in rows), default=1.0),
    }


PAGE = Page("Requests", 50, SCOPES, context, frozenset(("rows",)))
