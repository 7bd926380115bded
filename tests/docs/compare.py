"""Whether an answer is as the page shows it.

JSON: every key that is shown must be there, with an equal value; keys that are not shown may be there too. A list has
as many items as shown. "..." stands for any value, and as the last item of a list for any further items.
Text: equal but for spaces at the ends of lines; ... stands for any text.
"""

import json
import math
import re
from typing import Any

ANY = "..."
EXACT = (1e-6, 1e-6)
CLOSE = (0.01, 0.001)
"""With `approx`: how far a fraction may be off, relative and absolute. Results differ a little between processors."""


def differences(shown: Any, got: Any, *, approx: bool, where: str = "answer") -> list[str]:
    """What is not as shown, one line each; empty: all is well."""
    if shown == ANY:
        return []
    if isinstance(shown, dict):
        return _objects(shown, got, approx, where)
    if isinstance(shown, list):
        return _lists(shown, got, approx, where)
    if isinstance(shown, float) and isinstance(got, float | int) and not isinstance(got, bool):
        relative, absolute = CLOSE if approx else EXACT
        if math.isclose(shown, got, rel_tol=relative, abs_tol=absolute):
            return []
    elif type(shown) is type(got):
        if isinstance(shown, str) and ANY in shown:
            return [] if matches(shown, got) else [f"{where} is {got!r}, shown is {shown!r}"]
        if shown == got:
            return []
    return [f"{where} is {json.dumps(got)[:200]}, shown is {json.dumps(shown)}"]


def _objects(shown: dict[str, Any], got: Any, approx: bool, where: str) -> list[str]:
    if not isinstance(got, dict):
        return [f"{where} is no object: {json.dumps(got)[:200]}"]
    found: list[str] = []
    for key, value in shown.items():
        if key == ANY:
            continue
        if key not in got:
            found.append(f"{where} has no {key!r}; it has {', '.join(sorted(got))}: {json.dumps(got)[:300]}")
        else:
            found += differences(value, got[key], approx=approx, where=f"{where}.{key}")
    return found


def _lists(shown: list[Any], got: Any, approx: bool, where: str) -> list[str]:
    if not isinstance(got, list):
        return [f"{where} is no list: {json.dumps(got)[:200]}"]
    open_ = bool(shown) and shown[-1] == ANY
    items = shown[:-1] if open_ else shown
    if len(got) < len(items) or (len(got) > len(items) and not open_):
        return [f"{where} has {len(got)} items, shown are {len(items)}: {json.dumps(got)[:300]}"]
    return [
        fault
        for number, (one, other) in enumerate(zip(items, got, strict=False))
        for fault in differences(one, other, approx=approx, where=f"{where}[{number}]")
    ]


def matches(shown: str, got: str) -> bool:
    """Whether a text is as shown."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(shown).split(ANY))
    return re.fullmatch(pattern, _trimmed(got), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def merged(shown: Any, got: Any) -> Any:
    """`got` in the shape of `shown`: only the keys that are shown, and "..." where it is shown."""
    if shown == ANY:
        return ANY
    if isinstance(shown, str) and isinstance(got, str) and ANY in shown and matches(shown, got):
        return shown
    if isinstance(shown, dict) and isinstance(got, dict):
        return {key: merged(value, got[key]) for key, value in shown.items() if key in got} | (
            {ANY: ANY} if ANY in shown else {}
        )
    if isinstance(shown, list) and isinstance(got, list):
        open_ = bool(shown) and shown[-1] == ANY
        items = shown[:-1] if open_ else shown
        kept = [merged(one, other) for one, other in zip(items, got, strict=False)]
        return [*kept, ANY] if open_ else kept + got[len(kept) :]
    return got
