"""Compares an answer with the one that the page shows.

JSON: every shown key must exist with an equal value; further keys are allowed. A list must have as many items as shown.
"..." matches any value and, as the last item of a list, any further items.
Text: must be equal except for spaces at the ends of lines; ... matches any text.
"""

import json
import math
import re
from typing import Any

ANY = "..."
EXACT = (1e-6, 1e-6)
CLOSE = (0.01, 0.001)
"""Relative and absolute tolerance of fractions with `approx`, since results differ a little between processors."""


def differences(displayed: Any, got: Any, *, approx: bool, where: str = "answer") -> list[str]:
    """Return a line for each difference; empty if there is none."""
    if displayed == ANY:
        return []
    if isinstance(displayed, dict):
        return _objects(displayed, got, approx, where)
    if isinstance(displayed, list):
        return _lists(displayed, got, approx, where)
    if isinstance(displayed, float) and isinstance(got, float | int) and not isinstance(got, bool):
        relative, absolute = CLOSE if approx else EXACT
        if math.isclose(displayed, got, rel_tol=relative, abs_tol=absolute):
            return []
    elif type(displayed) is type(got):
        if isinstance(displayed, str) and ANY in displayed:
            return [] if matches(displayed, got) else [f"{where} is {got!r}, shown is {displayed!r}"]
        if displayed == got:
            return []
    return [f"{where} is {json.dumps(got)[:200]}, shown is {json.dumps(displayed)}"]


def _objects(displayed: dict[str, Any], got: Any, approx: bool, where: str) -> list[str]:
    if not isinstance(got, dict):
        return [f"{where} is no object: {json.dumps(got)[:200]}"]
    found: list[str] = []
    for key, value in displayed.items():
        if key == ANY:
            continue
        if key not in got:
            found.append(f"{where} has no {key!r}; it has {', '.join(sorted(got))}: {json.dumps(got)[:300]}")
        else:
            found += differences(value, got[key], approx=approx, where=f"{where}.{key}")
    return found


def _lists(displayed: list[Any], got: Any, approx: bool, where: str) -> list[str]:
    if not isinstance(got, list):
        return [f"{where} is no list: {json.dumps(got)[:200]}"]
    open_ = bool(displayed) and displayed[-1] == ANY
    items = displayed[:-1] if open_ else displayed
    if len(got) < len(items) or (len(got) > len(items) and not open_):
        return [f"{where} has {len(got)} items, shown are {len(items)}: {json.dumps(got)[:300]}"]
    return [
        fault
        for number, (one, other) in enumerate(zip(items, got, strict=False))
        for fault in differences(one, other, approx=approx, where=f"{where}[{number}]")
    ]


def matches(displayed: str, got: str) -> bool:
    """Return whether a text is as shown."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(displayed).split(ANY))
    return re.fullmatch(pattern, _trimmed(got), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def merged(displayed: Any, got: Any) -> Any:
    """Return `got` in the shape of `displayed`: only with its keys, and with "..." where it has that."""
    if displayed == ANY:
        return ANY
    if isinstance(displayed, str) and isinstance(got, str) and ANY in displayed and matches(displayed, got):
        return displayed
    if isinstance(displayed, dict) and isinstance(got, dict):
        return {key: merged(value, got[key]) for key, value in displayed.items() if key in got} | (
            {ANY: ANY} if ANY in displayed else {}
        )
    if isinstance(displayed, list) and isinstance(got, list):
        open_ = bool(displayed) and displayed[-1] == ANY
        items = displayed[:-1] if open_ else displayed
        common = [merged(one, other) for one, other in zip(items, got, strict=False)]
        return [*common, ANY] if open_ else common + got[len(common) :]
    return got
