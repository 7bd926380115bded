"""Results of GPU runs: the first ones (H100, H200), and the aims in the newest results of each card."""

import json
from pathlib import Path
from typing import Any

from docs.tables.markdown import table

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu"
H100, H200 = "2026-11-27-h100", "2026-11-27-h200"
GIB = 1 << 30
Cells = tuple[str, ...]
"""Question, card, Roundhouse's figure, stock vLLM's figure."""


def gpu() -> str:
    """Return the first runs, and the aims."""
    return "\n\n".join([first_runs(), *(_aims(run) for run in _runs())])


def first_runs() -> str:
    """Return a comparison of Roundhouse with `vllm serve` on one card."""
    one, two = _file(H100), _file(H200)
    head = ("question", "card", "Roundhouse", "`vllm serve`")
    return f"{_origin(one, two)}\n\n{table(head, [*_right(one, two), *_swaps(one, two), *_memory(one, two)])}"


def _runs() -> list[dict[str, Any]]:
    """Return the acceptance run's newest results for each card, merged with older files of the same commit.

    The first two files have another format and are skipped.
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


def _file(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return results


def _origin(*files: dict[str, Any]) -> str:
    runs = " and ".join(f"{file['environment']['gpu']} (commit {file['environment']['commit'][:7]})" for file in files)
    e = files[0]["environment"]
    return (
        f"Measured on {e['time'][:10]}, one {runs}, driver {e['driver']}, {e['cpus']} cores, Python {e['python']}, "
        f"vLLM {e['versions']['vllm']} on PyTorch {e['versions']['torch']}."
    )


def _right(one: dict[str, Any], two: dict[str, Any]) -> list[Cells]:
    rows = [
        ("twenty adapters at once, right answers", "H100", one, "right answers, eager", "eager"),
        ("the same with compilation and CUDA graphs", "H100", one, "right answers, compiled", "compiled, cold"),
        ("the same on four places, six in host memory", "H200", two, "twenty adapters on four places", "four places"),
    ]
    cells: list[Cells] = [
        (what, card, _score(file["stages"][stage]["answers"][step]), "") for what, card, file, stage, step in rows
    ]
    checks = one["stages"]["right answers, eager"]["checks"]
    for what in ("rerank", "embeddings"):
        apart = checks[f"{what} against CPU values"]["detail"].split()[2]
        cells.append((f"{what}: largest difference of a value from a CPU's", "H100", apart, ""))
    return cells


def _score(answers: dict[str, Any]) -> str:
    right, requested = (sum(pair[i] for pair in answers["score"].values()) for i in (0, 1))
    return f"{right} of {requested}"


def _swaps(one: dict[str, Any], two: dict[str, Any]) -> list[Cells]:
    tiers = one["stages"]["large: added to the first token"]["figures"]
    gaps = one["stages"]["large: gaps of others"]["figures"]
    mixed = one["stages"]["large: twenty adapters in one batch"]["figures"]
    where = {"device": "in its place", "host": "in host memory", "disk": "on disk (page cache)"}
    rows = []
    for tier, words in where.items():
        ours, theirs = (tiers[f"{who}: added TTFT, {tier}"] for who in ("big", "stock"))
        cells = (f"{each['added_p50_ms']:.1f} / {each['added_p99_ms']:.1f} ms" for each in (ours, theirs))
        rows.append((f"8B shape, adapter of 84 MB {words}: added to the first token, p50 / p99", "H100", *cells))
    before, after = (file["waited_for_the_adapter"]["disk, first time"]["p50_ms"] for file in (one, two))
    rows.append(("wait for an adapter that is read for the first time, p50", "H100", f"{before} ms", ""))
    rows.append(("the same, read by four threads and distributed from one copy", "H200", f"{after} ms", ""))
    for kind in ("swaps", "8k prefills", "swaps with 8k prefills"):
        cells = (f"{gaps[f'{who}: gaps of 8 streams, {kind}']['longest_ms']:.0f} ms" for who in ("big", "stock"))
        rows.append((f"longest gap of eight streams during {kind.replace('8k prefills', 'prompts of 8,000 tokens')}",
                     "H100", *cells))  # fmt: skip
    ratios = (f"{mixed[f'{who}: tokens a second, 64 at once']['ratio']:.2f} ×" for who in ("big", "stock"))
    rows.append(("tokens/s of twenty adapters in a batch of 64, over the base's", "H100", *ratios))
    return rows


def _memory(one: dict[str, Any], two: dict[str, Any]) -> list[Cells]:
    held = one["stages"]["two models, sleep and wake"]["bytes"]["two models"]
    small = one["stages"]["two models, sleep and wake"]["sleep"]
    first, again = (step for step in two["loads"]["big"] if step["message"] == "asleep")
    awake = next(step for step in two["loads"]["big"] if step["message"] == "awake")
    reported = f"{held['counted'] / GIB:.2f} GiB, NVML {held['nvml'] / GIB:.2f}"
    wakes = ", ".join(f"{nap['wake_and_answer_s']:.2f}" for nap in small)
    return [
        ("two models on one card: memory by the server's count", "H100", reported, ""),
        ("a small model wakes and answers 16 tokens", "H100", f"{wakes} s", ""),
        ("8B shape falls asleep: the first time, later", "H200",
         f"{first['seconds']:.1f}, {again['seconds']:.2f} s", ""),
        ("8B shape wakes", "H200", f"{awake['seconds']:.2f} s", ""),
        ("card memory that its sleep frees, and that it keeps", "H200",
         f"{first['freed_bytes'] / GIB:.1f} and {first['bytes'] / GIB:.1f} GiB", ""),
    ]  # fmt: skip
