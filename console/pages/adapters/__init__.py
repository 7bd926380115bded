"""Adapters: places, versions, aliases; register, roll back, pin."""

from console.host import Context, Page, Visit
from tenants.caller import Scope


async def context(visit: Visit) -> Context:
    bases = [model.id for model in visit.host.models() if model.task == "chat"]
    return {"adapters": await visit.host.adapters(), "bases": bases}


PAGE = Page("Adapters", 30, frozenset((Scope.ADAPTERS,)), context, frozenset(("rows",)))
