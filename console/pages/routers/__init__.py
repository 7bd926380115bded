"""Routers: the target chosen for a sentence and why, thresholds, versions, aliases."""

from console.host import Context, Page, Visit
from tenants.caller import Scope


async def context(visit: Visit) -> Context:
    query = visit.request.query_params
    return {
        "routers": visit.host.routers(),
        "chosen": query.get("name", "")[:200],
        "text": query.get("text", "")[:2000],
        "may_ask": visit.may(Scope.INFER),
    }


PAGE = Page("Routers", 55, frozenset((Scope.MODELS,)), context, frozenset(("rows",)))
