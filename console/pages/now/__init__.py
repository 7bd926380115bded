"""Now: adapters in places, memory, why requests waited, recent decisions."""

import msgspec

from console.host import Context, Page, Visit
from tenants.caller import Scope


async def context(visit: Visit) -> Context:
    now = visit.host.console.view_for(visit.host.now(), visit.team)
    text = msgspec.json.encode(now).decode()
    return {
        "now": now,
        "first": text.replace("<", "\\u003c"),
        "may_ask": visit.may(Scope.INFER) and not visit.host.is_passed,
    }


PAGE = Page("Now", 10, frozenset((Scope.MODELS,)), context)
