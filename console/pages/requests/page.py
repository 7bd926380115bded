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
        "whole": _whole([row.total for row in rows]),
    }


def _whole(totals: list[float]) -> float:
    """Seconds that a bar's whole width stands for: one request that waited for a load must not make all others dots."""
    return sorted(totals)[int(0.8 * (len(totals) - 1))] if totals else 1.0


PAGE = Page("Requests", 50, SCOPES, context, frozenset(("rows",)))
