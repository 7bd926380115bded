"""The aims of GPU runs, in the newest results of each card."""

import json
from pathlib import Path
from typing import Any

from docs.tables.markdown import table

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu"


def gpu() -> str:
    """Return the aims of each card's newest results."""
    return "\n\n".join(map(_aims, _runs()))


def _runs() -> list[dict[str, Any]]:
    """Return the acceptance run's newest results for each card, merged with older files of the same commit.

    The files of the first runs have another format and are skipped; the page has their figures.
    """
    files = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
    runs = sorted((file for file in files if "steps" in file), key=lambda file: str(file["environment"]["time"]))
    newest: dict[str, dict[str, Any]] = {}
    for run in runs:
        card, commit = (run["environment"][key] for key in ("gpu", "commit"))
        before = newest.get(card)
        same = before["steps"] if before is not None and before["environment"]["commit"] == commit else {}
        newest[card] = {**run, "steps": {**same, **run["steps"]}}
    return list(newest.values())


def _aims(run: dict[str, Any]) -> str:
    from benchmarks.gpu.bars import bars

    e = run["environment"]
    rows = [
        (bar.name, _number(bar.seen), _number(bar.stock), f"{bar.relation} {bar.aim:g} {bar.unit}".strip(), bar.verdict)
        for bar in bars(run["steps"])
    ]
    origin = f"Measured on {e['time'][:10]}, one {e['gpu']} (commit {e['commit'][:7]}), driver {e['driver']}."
    return f"{origin}\n\n{table(('aim', 'Roundhouse', '`vllm serve`', 'bar', ''), rows)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
