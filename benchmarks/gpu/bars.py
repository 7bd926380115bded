"""The aims of a run on a card: met, missed or not measured, with the figures of stock `vllm serve`.

    python -m benchmarks.gpu.bars RESULTS [RESULTS ...]

Several files, such as those of the timed parts and of the steps that check answers, must be of one card and one commit.
The exit code is 1 if an aim was missed or not measured, 2 if a file cannot be used.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.large import AIMS

OURS, STOCK = "roundhouse", "vllm serve"
WHERE = {"device": "in its place", "host": "in host memory", "disk": "in the page cache"}
GAPS = {"swaps": 30.0, "long prompts": 60.0, "swaps and long prompts": 70.0}
"""Milliseconds that the longest gap of eight streams may take during these."""
MIXED, SLEEP, ENCODERS, SPEECH = 0.75, 4.0, 1.5, 1.0
RIGHT = {
    "without compilation": ("twenty adapters in one crowd",),
    "on four places": tuple(f"twenty adapters in one crowd, on four places, {turn}" for turn in (1, 2)),
    "with compilation and graphs": ("twenty adapters in one crowd, with compilation and graphs",),
}
OTHERS = ("embeddings are those of a CPU", "scores are those of a CPU", "recordings are understood")
Steps = Mapping[str, Mapping[str, Any]]


class Unusable(ValueError):
    """Results files that do not belong together."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An aim, with Roundhouse's and stock vLLM's figure. `seen` and `stock` are None if nothing was measured."""

    name: str
    relation: Literal["<=", ">="]
    aim: float
    unit: str
    seen: float | None
    stock: float | None = None

    @property
    def verdict(self) -> str:
        if self.seen is None:
            return "not measured"
        return "met" if (self.seen <= self.aim if self.relation == "<=" else self.seen >= self.aim) else "MISSED"


def bars(steps: Steps) -> list[Bar]:
    """Return all aims, the most important first."""
    return [
        Bar("first token of the base, one client, over stock's", "<=", 1.0, "x", _first_token(steps)),
        *_added(steps),
        *_gaps(steps),
        Bar("twenty adapters in a batch of 64, tokens/s over the base's", ">=", MIXED, "x",
            *_both(steps, "mixed: {}", "ratio")),
        Bar("first sleep of the 8B shape, about 28 GB", "<=", SLEEP, "s", _sleep(steps)),
        *(Bar(f"{kind}, mixed lengths, over the library's", ">=", ENCODERS, "x", _encoder(steps, kind))
          for kind in ("embed", "rerank")),
        Bar("speech over faster-whisper's batches, the worst of three", ">=", SPEECH, "x", _speech(steps)),
        *_right(steps),
    ]  # fmt: skip


def _of(steps: Steps, name: str, figure: str) -> float | None:
    """Return a figure of a step, or None if it was not measured."""
    value = steps.get(name, {}).get(figure)
    return None if value is None else float(value)


def _both(steps: Steps, name: str, figure: str) -> tuple[float | None, float | None]:
    """Return Roundhouse's and stock's figure. `name` is the step's, with {} for the server."""
    ours, stock = (_of(steps, name.format(server), figure) for server in (OURS, STOCK))
    return ours, stock


def _first_token(steps: Steps) -> float | None:
    """Return Roundhouse's p50 over stock's, from the part `ttft` or else from the base requests of `tiers`."""
    for name, figure in (("ttft: without stamps, {}", "p50_ms"), ("tiers: device, {}", "base_p50_ms")):
        ours, stock = _both(steps, name, figure)
        if ours is not None and stock:
            return ours / stock
    return None


def _added(steps: Steps) -> Iterable[Bar]:
    for tier, (median, highest) in AIMS.items():
        what = f"adapter {WHERE[tier]}"
        yield Bar(f"{what}: added p50", "<=", median, "ms", *_both(steps, f"tiers: {tier}, {{}}", "added_p50_ms"))
        yield Bar(
            f"{what}: p99 over the base's",
            "<=",
            highest,
            "ms",
            *_both(steps, f"tiers: {tier}, {{}}", "p99_over_p99_ms"),
        )


def _gaps(steps: Steps) -> Iterable[Bar]:
    for kind, most in GAPS.items():
        gaps = _both(steps, f"storm: {kind}, {{}}", "longest_ms")
        yield Bar(f"longest gap of eight streams: {kind}", "<=", most, "ms", *gaps)
    kind = "swaps and long prompts"
    gap = _of(steps, f"shipped: {kind}", "longest_ms")
    yield Bar(f"the same in the shipped recipe: {kind}", "<=", GAPS[kind], "ms", gap)


def _sleep(steps: Steps) -> float | None:
    first = steps.get("sleep: 1", {})
    return _of(steps, "sleep: 1", "seconds") if first.get("state") == "asleep" else None


def _encoder(steps: Steps, kind: str) -> float | None:
    """Return the best recipe value's ratio, which is its worst over all numbers of clients."""
    cells = [step["over_library"] for name, step in steps.items() if name.startswith(f"{kind} on mixed lengths")]
    return max((min(cell[way] for cell in cells) for way in cells[0]), default=None) if cells else None


def _speech(steps: Steps) -> float | None:
    figures = steps.get("speech", {}).get("figures", {})
    ratios = [figures.get(f"{what}.ratio", {}).get("value") for what in ("alone", "four", "long")]
    return None if None in ratios else min(ratios)


def _right(steps: Steps) -> Iterable[Bar]:
    """Yield the share of right answers; for embeddings, scores and transcripts the share of passed checks."""
    for how, names in RIGHT.items():
        present = [steps[name] for name in names if name in steps]
        right, wrong = sum(step["right"] for step in present), sum(len(step["wrong"]) for step in present)
        is_complete = len(present) == len(names) and right + wrong
        yield Bar(f"right answers {how}", ">=", 1.0, "", right / (right + wrong) if is_complete else None)
    checks = [steps[name]["ok"] for name in OTHERS if name in steps]
    share = sum(checks) / len(OTHERS) if len(checks) == len(OTHERS) else None
    yield Bar("embeddings, scores and transcripts are a CPU's", ">=", 1.0, "", share)


def table(aims: Sequence[Bar]) -> str:
    """Return a line for each aim, then the numbers of met, missed and not measured ones."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    head = ("aim", "Roundhouse", STOCK, "bar", "")
    rows = [
        (bar.name, number(bar.seen), number(bar.stock), f"{bar.relation} {bar.aim:g} {bar.unit}".strip(), bar.verdict)
        for bar in aims
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    count: Callable[[str], int] = [bar.verdict for bar in aims].count
    total = f"{count('met')} met, {count('MISSED')} missed, {count('not measured')} not measured"
    return "\n".join([*(line.rstrip() for line in lines), total])


def warning(environment: Mapping[str, Any]) -> str:
    """Return why the figures mean nothing, or '' if they are a card's."""
    if "gpu" not in environment:
        return "these results were measured without a GPU: they only show that the run works"
    return "--shape tiny: the figures mean nothing" if "--shape tiny" in environment.get("command", "") else ""


def merged(files: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the steps of all files. Raises Unusable if the files are not of one card and commit."""
    for key in ("gpu", "commit"):
        values = {str(file["environment"].get(key)) for file in files}
        if len(values) > 1:
            raise Unusable(f"the files differ in {key}: {' and '.join(sorted(values))}; name files of one run")
    return {name: step for file in files for name, step in file["steps"].items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    try:
        files = [json.loads(file.read_text()) for file in options.results]
        aims = bars(merged(files))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        print(f"error: not results of an acceptance run: {type(fault).__name__}: {fault}", file=sys.stderr)
        return 2
    for file in files:
        where = file["environment"]
        print(f"{where.get('gpu', where.get('cpu'))}, {where['time']}, commit {where['commit'][:8]}")
        if text := warning(where):
            print(f"note: {text}")
    print(table(aims))
    return 0 if all(bar.verdict == "met" for bar in aims) else 1


if __name__ == "__main__":
    sys.exit(main())
