"""Embeddings and rerank with padding, without it, and without it as CUDA graphs: which recipe value pays on a card.

One server holds the starter's two models three times. Requests of mixed lengths come from 16 clients; each way has
its turn in each round. On a CPU all three are one way, so a ratio there says how much the figures vary.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.embed_rerank import DOCUMENTS, WORDS
from benchmarks.gpu.other_tasks import APART, QUERY, TEXTS
from benchmarks.gpu.report import Report
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.peers.bare import starter
from benchmarks.peers.servers import Roundhouse
from registry.recipes.fields import Flag

WAYS: dict[str, dict[str, Flag]] = {
    "padded": {},
    "unpadded": {"unpadded": True},
    "graphs": {"unpadded": True, "cuda_graphs": True},
}
CLIENTS, REQUESTS, ROUNDS = 16, 320, 3


def write_recipes(kind: str, folder: Path) -> dict[str, Path]:
    """A recipe of the starter's model for each way, by its id."""
    found = starter(kind)
    if found is None:
        return {}
    source, weights = found
    files = {}
    folder.mkdir(parents=True, exist_ok=True)
    for way, flags in WAYS.items():
        data: dict[str, Any] = yaml.safe_load(source.read_text())
        data |= {"id": f"{kind}-{way}", "aliases": [], "source": {"path": str(weights)}}
        data["engine"]["flags"] = flags
        files[data["id"]] = folder / f"{data['id']}.yaml"
        files[data["id"]].write_text(yaml.safe_dump(data, sort_keys=False))
    return files


async def run(report: Report, folder: Path, is_over: Callable[[], bool], *, tiny: bool) -> None:
    """Requests a second of each way, and how far its answers are from those with padding."""
    kinds = {kind: files for kind in ("embed", "rerank") if (files := write_recipes(kind, folder / "recipes"))}
    models = [model for files in kinds.values() for model in files]
    recipes = [file for files in kinds.values() for file in files.values()]
    with Roundhouse(models[0], folder, recipes, load=models) as server:
        report.server("encoders by recipe value", server.command())
        for kind in kinds:
            cells = await _turns(server, kind, 1 if tiny else ROUNDS, 32 if tiny else REQUESTS, is_over)
            values = {way: _values(server, kind, f"{kind}-{way}") for way in WAYS}
            apart = {
                way: round(max(abs(a - b) for a, b in zip(values[way], values["padded"], strict=True)), 5)
                for way in WAYS
            }
            rates = {way: max(cell.requests_per_second for cell in some) for way, some in cells.items()}
            failed = sum(len(cell.failures) for some in cells.values() for cell in some)
            report.add(
                f"{kind} by recipe value", not failed and max(apart.values()) <= APART, failed=failed, apart=apart,
                per_second={way: round(rate, 1) for way, rate in rates.items()},
                over_padded={way: round(rate / rates["padded"], 3) for way, rate in rates.items()},
            )  # fmt: skip


async def _turns(
    server: Roundhouse, kind: str, rounds: int, number: int, is_over: Callable[[], bool]
) -> dict[str, list[Cell]]:
    cells: dict[str, list[Cell]] = {way: [] for way in WAYS}
    workload, lengths = Workload(44), WORDS["mixed"]
    for turn in range(rounds):
        if turn and is_over():
            break
        for way in WAYS:
            model = f"{kind}-{way}"
            requests = [
                workload.embed(model, words) if kind == "embed" else workload.rerank(model, words, DOCUMENTS)
                for words in (lengths[i % len(lengths)] for i in range(number))
            ]
            if not turn:  # until graphs are captured
                await closed_loop(server, requests, CLIENTS)
            cells[way].append(await closed_loop(server, requests, CLIENTS))
    return cells


def _values(server: Roundhouse, kind: str, model: str) -> list[float]:
    if kind == "embed":
        body: dict[str, Any] = {"model": model, "input": list(TEXTS)}
        data = server.http.post("/v1/embeddings", json=body).raise_for_status().json()["data"]
        return [float(value) for one in data for value in one["embedding"]]
    body = {"model": model, "query": QUERY, "documents": list(TEXTS)}
    ranked = server.http.post("/v1/rerank", json=body).raise_for_status().json()["results"]
    return [float(one["relevance_score"]) for one in sorted(ranked, key=lambda one: int(one["index"]))]
