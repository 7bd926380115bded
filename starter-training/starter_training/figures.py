"""pack/figures.json: digests of the weights, training record and measurements of each starter model.

cards.py writes the cards from it, and tests compare the shipped weights with it.
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
"""Exit code of a measurement that missed its aim. Python itself uses 1 for one that raised."""
Section = dict[str, Any]
"""Keys of a model's section: 'files' (path in the pack -> sha256), 'training' and 'measured'."""


def digests(pack: Path, files: Iterable[Path]) -> dict[str, str]:
    """Map paths inside `pack` to their sha256 in hex, sorted by path. Raises FileNotFoundError."""
    return {path.relative_to(pack).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def load(pack: Path = PACK) -> dict[str, Section]:
    """Return all sections; empty if there is no file yet."""
    path = pack / NAME
    sections: dict[str, Section] = json.loads(path.read_text()) if path.exists() else {}
    return sections


def update(pack: Path, model: str, **parts: Any) -> None:
    """Replace parts ('files', 'training', 'measured') of a model's section and keep the rest."""
    whole = load(pack)
    whole[model] = {**whole.get(model, {}), **parts}
    pack.mkdir(parents=True, exist_ok=True)
    (pack / NAME).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")


def changed(pack: Path, section: Section) -> list[str]:
    """Return the files of a section that are missing or whose digest differs."""
    wrong = []
    for name, digest in section["files"].items():
        path = pack / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            wrong.append(name)
    return wrong


def spread(share: float, count: int) -> float:
    """Return the tolerance of a share of right answers on `count` inputs: three binomial standard deviations.

    This is generous for the inputs on which the share was measured, where only rounding on another machine can make a
    difference. The share is taken as at least two inputs away from 0 and 1, where the formula gives 0.
    """
    inside = min(max(share, 2 / count), 1 - 2 / count)
    return 3 * math.sqrt(inside * (1 - inside) / count)


def off(expected: Mapping[str, float], seen: Mapping[str, float], count: int) -> dict[str, tuple[float, float]]:
    """Return names that are missing or whose share differs by more than `spread`, with the expected and seen share."""
    missing = {name: (value, math.nan) for name, value in expected.items() if name not in seen}
    return missing | {
        name: (value, seen[name])
        for name, value in expected.items()
        if name in seen and abs(seen[name] - value) > spread(value, count)
    }
