"""Providers: external servers for models, and whether they answer; add, test, remove."""

from console.host import Context, Page, Visit
from tenants.caller import Scope


async def context(visit: Visit) -> Context:
    return {"providers": visit.host.providers(), "may": visit.may(Scope.ADMIN)}


PAGE = Page("Providers", 57, frozenset((Scope.MODELS,)), context, frozenset(("rows",)))
