"""The matrix of base and adapters over tasks, as data, as a Markdown table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

BAR_OWN = 0.95
"""The aim of an adapter on its own task. Base and wrong adapters should have at most 0.05 on average."""


@dataclass(frozen=True)
class Matrix:
    """Shares of exact matches.

    Attributes:
        rows: share right (0 to 1) by 'starter-chat' or an adapter's name, then by task. Teacher-forced, own cells on
            `own_inputs` and the others on `other_inputs` held-out inputs.
        served: own cells by greedy decoding in vLLM, on the first `served_inputs` of the own inputs.
        disagree: on how many of these the two methods disagree.
        talk: shares of the base on questions, small talk and refusals.
        seconds: wall clock.
    """

    rows: dict[str, dict[str, float]]
    own_inputs: int
    other_inputs: int
    served: dict[str, float]
    served_inputs: int
    disagree: int
    talk: dict[str, float]
    seconds: float
    date: str

    def own(self) -> dict[str, float]:
        """Return each adapter's share on its own task."""
        return {name: row[name] for name, row in self.rows.items() if name in row}

    def wrong(self) -> dict[str, float]:
        """Return each adapter's mean over the tasks of the nineteen others."""
        means = {}
        for name, row in self.rows.items():
            if name in row:
                others = [share for task, share in row.items() if task != name]
                means[name] = round(sum(others) / len(others), 4)
        return means

    def base(self) -> float:
        """Return the base's mean over all tasks."""
        row = next(row for name, row in self.rows.items() if name not in row)
        return round(sum(row.values()) / len(row), 4)

    def summary(self) -> dict[str, Any]:
        """Return the few figures that show how close the pack is to its aims."""
        own, wrong = self.own(), self.wrong()
        return {
            "own_mean": round(sum(own.values()) / len(own), 4),
            "own_lowest": min(own.values()),
            "under_bar": sorted(name for name, share in own.items() if share < BAR_OWN),
            "wrong_mean": round(sum(wrong.values()) / len(wrong), 4),
            "wrong_highest_cell": max(s for n, row in self.rows.items() for t, s in row.items() if n != t and n in row),
            "base_mean": self.base(),
        }


def table(matrix: Matrix) -> str:
    """Return Markdown in per cent: a row for the base and each adapter, a numbered column per task, a dot for 0."""
    tasks = list(next(iter(matrix.rows.values())))
    lines = [
        "| | " + " | ".join(str(number) for number in range(1, len(tasks) + 1)) + " |",
        "|---|" + "---:|" * len(tasks),
    ]
    for name, row in matrix.rows.items():
        label = f"{tasks.index(name) + 1} {name}" if name in row else f"base ({name})"
        cells = [_cell(row[task], bold=task == name) for task in tasks]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(share: float, *, bold: bool) -> str:
    text = f"{100 * share:.1f}".removesuffix(".0")
    return f"**{text}**" if bold else "." if share == 0 else text


def picture(matrix: Matrix, path: Path) -> None:
    """Write a heat map as PNG, with weights as rows and tasks as columns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(next(iter(matrix.rows.values())))
    shares = [[100 * row[task] for task in tasks] for row in matrix.rows.values()]
    figure, axes = pyplot.subplots(figsize=(9.6, 9.2), layout="constrained")
    image = axes.imshow(shares, cmap="viridis", vmin=0, vmax=100)
    axes.set_xticks(range(len(tasks)), tasks, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(matrix.rows)), list(matrix.rows), fontsize=8)
    for y, row in enumerate(shares):
        for x, value in enumerate(row):
            if value >= 0.5:
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=6,
                          color="black" if value > 60 else "white")  # fmt: skip
    axes.set_xlabel("task of the held-out inputs")
    axes.set_ylabel("weights that answer")
    axes.set_title(f"exact match in per cent (own: {matrix.own_inputs} inputs, others: {matrix.other_inputs})")
    figure.colorbar(image, shrink=0.7)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


def write(matrix: Matrix, folder: Path) -> None:
    """Write matrix.md and matrix.png to `folder`."""
    (folder / "matrix.md").write_text(table(matrix) + "\n")
    picture(matrix, folder / "matrix.png")
