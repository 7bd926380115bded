"""The keywords of a JSON schema that are enforced, and those that are refused."""

from docs.tables.markdown import code, table
from models.chat.grammars.language import MOST_OPTIONS, REFUSED, RULES
from models.chat.grammars.scalars import FORMATS, MOST_MULTIPLES


def enforced() -> str:
    """Return the enforced keywords and their limits."""
    values = {"formats": ", ".join(map(code, FORMATS)), "options": MOST_OPTIONS, "multiples": f"{MOST_MULTIPLES:,}"}
    rows = [(", ".join(map(code, names.split(", "))), what.format(**values)) for names, what in RULES.items()]
    return table(("keyword", "enforced"), rows)


def refused() -> str:
    """Return the refused keywords, the values for which they are accepted, and what to do instead."""
    rows = []
    for name, (harmless, advice) in REFUSED.items():
        unless = ", ".join(code(str(value).lower()) for value in harmless) or "-"
        rows.append((code(name), unless, advice.replace("'", "`")))
    return table(("keyword", "unless", "instead"), rows)
