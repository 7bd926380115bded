"""pack/figures.json: for each starter model the digests of its weights, how it was trained and what was measured.

The cards are written from it (cards.py) and the tests hold the shipped weights against it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from models.starter import __file__ as starter

PACK = Path(starter).parent / "pack"
NAME = "figures.json"
MISSED = 3
"""Exit code of a measurement that missed its aim: 1 is Python's own for one that broke off."""
Section = dict[str, Any]
"""Keys of a model's section: 'files' (path in the pack -> sha256), 'training' and 'measured'."""


def digests(pack: Path, files: Iterable[Path]) -> dict[str, str]:
    """Path inside `pack` -> sha256 in hex, in order of the paths. Raises FileNotFoundError."""
    return {path.relative_to(pack).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def load(pack: Path = PACK) -> dict[str, Section]:
    """All sections; empty when there is no file yet."""
    path = pack / NAME
    found: dict[str, Section] = json.loads(path.read_text()) if path.exists() else {}
    return found


def update(pack: Path, model: str, **parts: Any) -> None:
    """Replaces parts ('files', 'training', 'measured') of a model's section and keeps the rest."""
    whole = load(pack)
    whole[model] = {**whole.get(model, {}), **parts}
    pack.mkdir(parents=True, exist_ok=True)
    (pack / NAME).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")


def changed(pack: Path, section: Section) -> list[str]:
    """Files of a section whose content is not what the section says, missing ones included."""
    wrong = []
    for name, digest in section["files"].items():
        path = pack / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            wrong.append(name)
    return wrong


def spread(share: float, count: int) -> float:
    """Tolerance of a share of right answers on `count` inputs around `share`: three binomial standard deviations.

    For the same inputs that the figure was measured on this is generous: there only rounding on another machine can
    make a difference. The share counts as at least two inputs away from 0 and 1, where the formula gives nothing.
    """
    inside = min(max(share, 2 / count), 1 - 2 / count)
    return 3 * math.sqrt(inside * (1 - inside) / count)


def off(expected: Mapping[str, float], seen: Mapping[str, float], count: int) -> dict[str, tuple[float, float]]:
    """Names whose seen share is further from the expected one than `spread` allows, with both; also missing names."""
    missing = {name: (value, math.nan) for name, value in expected.items() if name not in seen}
    return missing | {
        name: (value, seen[name])
        for name, value in expected.items()
        if name in seen and abs(seen[name] - value) > spread(value, count)
    }
