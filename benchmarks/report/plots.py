"""Plots of a results file, as PNG files beside it. Needs matplotlib from the `bench` extra."""

import json
from pathlib import Path
from typing import Any

COLOURS = {"roundhouse": "#0b6e4f", "vllm serve": "#c44536", "vllm serve, patched": "#6c757d"}
GATEWAY = {
    "ttft_p50": "TTFT p50, ms",
    "ttft_p99": "TTFT p99, ms",
    "tokens_per_second": "output tokens/s",
    "cpu_per_1000_tokens": "CPU s per 1,000 tokens",
}
ADAPTERS = {
    "small.{}.{}.added_p50": ("TTFT added over base, p50, ms", ("device", "host", "disk")),
    "small.{}.{}.gap_longest": ("longest token gap of other streams, ms", ("alone", "base", "storm")),
    "mixed.{}.{}.tokens_per_second": ("tokens/s, 20 clients", ("base", "adapters")),
}


def draw(file: Path) -> list[Path]:
    """Draw the plots for which the file has figures; returns their files."""
    sections = json.loads(file.read_text())["benchmarks"]
    drawn = []
    if "gateway_tax" in sections:
        drawn.append(_gateway(sections["gateway_tax"], file.with_name(f"{file.stem}-gateway_tax.png")))
    if "adapters" in sections:
        drawn.append(_adapters(sections["adapters"], file.with_name(f"{file.stem}-adapters.png")))
    if sections.get("residency", {}).get("series", {}).get("trace"):
        drawn.append(_trace(sections["residency"], file.with_name(f"{file.stem}-residency.png")))
    return drawn


def _figure(columns: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(3.6 * max(columns, 2), 3.2), layout="constrained")
    return figure, axes


def _save(figure: Any, file: Path, section: Any) -> Path:
    from matplotlib import pyplot

    where = section["environment"]
    load = section["load_before"]["load_average"][0]
    figure.suptitle(f"{where['cpu']}, {where['cores']} cores, {where['time']}, load {load}", fontsize=8)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return file


def _gateway(section: Any, file: Path) -> Path:
    """Plot each quantity over the number of clients, with the spread over rounds."""
    figure, axes = _figure(len(GATEWAY))
    figures = section["figures"]
    levels = section["series"].get("levels", [])
    for ax, (key, title) in zip(axes, GATEWAY.items(), strict=True):
        for name, colour in COLOURS.items():
            points = [(n, figures[k]) for n in levels if (k := f"c{n}.{name}.{key}") in figures]
            if points:
                _line(ax, points, name, colour)
        ax.set(title=title, xlabel="clients", xscale="log", ylim=(0, None))
        ax.set_xticks(levels, [str(n) for n in levels])
        ax.minorticks_off()
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(fontsize=7)
    return _save(figure, file, section)


def _line(ax: Any, points: list[tuple[int, Any]], name: str, colour: str) -> None:
    x, y = [n for n, _ in points], [f["value"] for _, f in points]
    spread = [[f["value"] - f["low"] for _, f in points], [f["high"] - f["value"] for _, f in points]]
    ax.errorbar(x, y, yerr=spread, label=name, color=colour, marker="o", capsize=3)


def _adapters(section: Any, file: Path) -> Path:
    """Plot bars per server, with the spread over rounds."""
    figure, axes = _figure(len(ADAPTERS))
    names = ("roundhouse", "vllm serve")
    for ax, (pattern, (title, kinds)) in zip(axes, ADAPTERS.items(), strict=True):
        for i, name in enumerate(names):
            figures = [(x, section["figures"].get(pattern.format(name, kind))) for x, kind in enumerate(kinds)]
            measured = [(x, f) for x, f in figures if f is not None]
            y = [f["value"] for _, f in measured]
            spread = [[f["value"] - f["low"] for _, f in measured], [f["high"] - f["value"] for _, f in measured]]
            at = [x + 0.4 * i - 0.2 for x, _ in measured]
            ax.bar(at, y, 0.38, yerr=spread, label=name, color=COLOURS[name], capsize=3)
        ax.set(title=title)
        ax.set_xticks(range(len(kinds)), kinds)
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(fontsize=7)
    return _save(figure, file, section)


def _trace(section: Any, file: Path) -> Path:
    """Plot a line per model over time, drawn where the model was ready."""
    figure, ax = _figure(1)
    trace = section["series"]["trace"]
    names = sorted({name for _, ready in trace for name in ready})
    for row, name in enumerate(names):
        times = [at for at, ready in trace if name in ready]
        ax.plot(times, [row] * len(times), "|", color=COLOURS["roundhouse"], markersize=14)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="seconds", title="resident models")
    return _save(figure, file, section)
