"""Adapters: places, versions, aliases; register, roll back, pin."""

from console.host import ConsoleAdapter, Context, Page, Visit
from tenants.caller import Scope

MAX_ROWS = 100
"""Rows per load. Further ones are loaded when the viewer scrolls to them."""
MOST_VERSIONS = 20
"""Most versions of an adapter in the table, the newest ones."""

NONE_YET = "There is no adapter yet. Drop one above, or use the command line: roundhouse adapters add NAME FOLDER"
NO_MATCH = "No adapter contains these words."
CHANGED = "The list has changed: reload the page."
"""Texts in place of rows; the last one if the row before was removed."""


async def context(visit: Visit) -> Context:
    bases = [model.id for model in visit.host.models() if model.task == "chat"]
    query, adapters = visit.request.query_params, await visit.host.adapters()
    words, after = query.get("words", "")[:200], query.get("after")
    matching = [adapter for adapter in adapters if _matches(adapter, words.lower().split())]
    if after is not None:  # the last row that the page has, unless it was removed meanwhile
        names = [f"{adapter.base}:{adapter.name}" for adapter in matching]
        matching = matching[names.index(after) + 1 :] if after in names else []
    return {
        "adapters": adapters,
        "rows": matching[:MAX_ROWS],
        "has_more": len(matching) > MAX_ROWS,
        "empty": CHANGED if after is not None else NO_MATCH if words else NONE_YET,
        "words": words,
        "bases": bases,
        "most_versions": MOST_VERSIONS,
    }


def _matches(adapter: ConsoleAdapter, words: list[str]) -> bool:
    """Return whether an adapter's names and digest contain all words."""
    text = " ".join((adapter.name, adapter.base, adapter.version, adapter.digest, *adapter.aliases)).lower()
    return all(word in text for word in words)


PAGE = Page("Adapters", 30, frozenset((Scope.ADAPTERS,)), context, frozenset(("rows",)))
