"""Models: recipes, effects of a load; load, unload, pin, add."""

from console.host import Context, Page, Visit
from tenants.caller import SCOPES, Scope


async def context(visit: Visit) -> Context:
    chosen = visit.request.query_params.get("id")
    values: dict[str, object] = {"models": visit.host.models(), "may": visit.may(Scope.MODELS), "chosen": None}
    if chosen is not None and visit.may(Scope.MODELS):
        recipe = await visit.host.recipe(chosen)
        values |= {"chosen": chosen, "recipe": recipe, "plan": visit.host.plan(chosen)}
    return values


PAGE = Page("Models", 20, SCOPES, context, frozenset(("rows",)))
