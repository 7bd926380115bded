"""Batches: progress, why they wait, failures, callbacks; cancel."""

from console.host import Context, Page, Visit
from tenants.caller import Scope

MAX_ROWS = 50


async def context(visit: Visit) -> Context:
    batches = await visit.host.batches(visit.team, MAX_ROWS)
    id_ = visit.request.query_params.get("id", "")
    chosen = next((batch for batch in batches if batch.id == id_), None)
    return {
        "batches": batches,
        "all_teams": visit.team is None,
        "own_team": visit.caller.team,
        "may_cancel": visit.may(Scope.INFER),
        "chosen": chosen,
        "deliveries": [] if chosen is None else await visit.host.batch_deliveries(chosen),
        "failures": {} if chosen is None else await visit.host.batch_failures(chosen),
    }


PAGE = Page("Batches", 52, frozenset((Scope.INFER, Scope.ADMIN)), context, frozenset(("rows",)))
