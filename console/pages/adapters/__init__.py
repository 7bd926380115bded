"""Adapters: places, versions, aliases; register, roll back, pin."""

from console.host import Context, Page, Visit
from tenants.caller import Scope

MOST_VERSIONS = 20
"""Most versions of an adapter in the table, the newest ones."""


async def context(visit: Visit) -> Context:
    bases = [model.id for model in visit.host.models() if model.task == "chat"]
    return {"adapters": await visit.host.adapters(), "bases": bases, "most_versions": MOST_VERSIONS}


PAGE = Page("Adapters", 30, frozenset((Scope.ADAPTERS,)), context, frozenset(("rows",)))
