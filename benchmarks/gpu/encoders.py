"""Embeddings and rerank on mixed lengths: each recipe value compared with the bare library on the same card.

One server holds both encoders of the shipped recipes (`encoder_shapes`) three times: with padding, without padding, and
without padding as CUDA graphs. The library gets the same files. All of them take turns in each round. On a CPU the
three variants are the same, so the ratios between them show how much the figures vary.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.embed_rerank import DOCUMENTS, WORDS
from benchmarks.gpu.encoder_shapes import write_encoder
from benchmarks.gpu.other_tasks import APART, QUERY, TEXTS
from benchmarks.gpu.report import Report
from benchmarks.gpu.shipped import RANDOM, STEP, TINY, expected
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.workload import Workload
from benchmarks.peers.bare import Bare
from benchmarks.peers.servers import Roundhouse, Server, start_all
from registry.recipes.fields import Flag

KINDS = ("embed", "rerank")
WAYS: dict[str, dict[str, Flag]] = {
    "padded": {},
    "unpadded": {"unpadded": True},
    "graphs": {"unpadded": True, "cuda_graphs": True},
}
LIBRARY = "library"
CLIENTS = (16, 64, 1)
FALLBACKS = ("runs with padding despite", "get no graph")
"""Parts of the engines' warnings that they do not run as the recipe says (`models.text.unpadded`)."""
REQUESTS, ROUNDS = 20, 3
"""Requests of each client per round, and number of rounds."""


def write_recipes(kind: str, shipped: Path, weights: Path, folder: Path, *, tiny: bool = False) -> dict[str, Path]:
    """Write the shipped recipe in each variant with these weights; returns the files by recipe id."""
    files = {}
    folder.mkdir(parents=True, exist_ok=True)
    for way, flags in WAYS.items():
        data: dict[str, Any] = yaml.safe_load((shipped / f"bge-{kind}.yaml").read_text())
        data |= {"id": f"{kind}-{way}", "aliases": [], "source": {"path": str(weights)}}
        data["engine"]["flags"] = flags
        if tiny:
            data["dtype"] = "auto"  # 16 bits are slow on a CPU
        files[data["id"]] = folder / f"{data['id']}.yaml"
        files[data["id"]].write_text(yaml.safe_dump(data, sort_keys=False))
    return files


async def run(report: Report, shipped: Path, folder: Path, is_over: Callable[[], bool], *, tiny: bool) -> None:
    """Measure both kinds with 16 clients, with 64, then with one, until the time is up.

    Args:
        shipped: folder of the recipes for this card.
        is_over: whether the time is up, so that no further round begins.
    """
    weights = {kind: write_encoder(kind, folder / kind, tiny=tiny) for kind in KINDS}
    recipes = {
        name: file
        for kind, path in weights.items()
        for name, file in write_recipes(kind, shipped, path, folder / "recipes", tiny=tiny).items()
    }
    server = Roundhouse("embed-padded", folder, list(recipes.values()), load=list(recipes))
    library = Bare(weights, folder)
    with ExitStack() as stack:
        await asyncio.to_thread(start_all, stack, [server, library])
        for one in (server, library):
            report.server(f"encoders, {one.name}", one.command())
        for kind in KINDS:
            view = server.http.get(f"/v1/models/{kind}-padded").raise_for_status().json()
            costs = expected(view, report.environment, TINY if tiny else RANDOM)
            report.add(f"{STEP}bge-{kind}.yaml", True, **costs)
            values = {way: _values(server, kind, f"{kind}-{way}") for way in WAYS}
            values[LIBRARY] = _values(library, kind, kind)
            apart = {
                way: round(max(abs(a - b) for a, b in zip(some, values[LIBRARY], strict=True)), 5)
                for way, some in values.items()
            }
            report.add(f"{kind}: answers are the library's", max(apart.values()) <= APART, apart=apart)
        for clients in CLIENTS:
            for kind in KINDS:
                name = f"{kind} on mixed lengths, {clients} clients"
                if clients != CLIENTS[0] and is_over():
                    report.leave_out(f"encoders: {name}", "no time is left")
                    continue
                rounds = 1 if tiny else ROUNDS
                number = (2 if tiny else REQUESTS) * clients
                cells = await _turns(server, library, kind, clients, number, rounds, is_over)
                _add(report, name, cells)
        warnings = fallbacks(server.log())
        report.add("encoders: all ran as their recipes say", not warnings, warnings=warnings)


def fallbacks(log: str) -> list[str]:
    """Return the lines of a server's log which say that a variant ran as another one, so its figures are that one's."""
    return sorted({line[:300] for line in log.splitlines() if any(words in line for words in FALLBACKS)})


def _add(report: Report, name: str, cells: dict[str, list[Cell]]) -> None:
    rates = {way: median(cell.requests_per_second for cell in some) for way, some in cells.items()}
    failed = sum(len(cell.failures) for some in cells.values() for cell in some)
    report.add(
        name, not failed, failed=failed, rounds=len(cells[LIBRARY]),
        per_second={way: round(rate, 1) for way, rate in rates.items()},
        over_library={way: round(rates[way] / rates[LIBRARY], 3) for way in WAYS},
        over_padded={way: round(rates[way] / rates["padded"], 3) for way in WAYS},
    )  # fmt: skip


async def _turns(
    server: Server, library: Server, kind: str, clients: int, number: int, rounds: int, is_over: Callable[[], bool]
) -> dict[str, list[Cell]]:
    cells: dict[str, list[Cell]] = {way: [] for way in (*WAYS, LIBRARY)}
    workload, lengths = Workload(44), WORDS["mixed"]
    for turn in range(rounds):
        if turn and is_over():
            break
        for way in cells:
            model = f"{kind}-{way}"
            requests = [
                workload.embed(model, words) if kind == "embed" else workload.rerank(model, words, DOCUMENTS)
                for words in (lengths[i % len(lengths)] for i in range(number))
            ]
            target = library if way == LIBRARY else server
            if not turn:  # a warm-up, in which graphs are captured
                await closed_loop(target, requests, clients)
            cells[way].append(await closed_loop(target, requests, clients))
    return cells


def _values(server: Server, kind: str, model: str) -> list[float]:
    if kind == "embed":
        body: dict[str, Any] = {"model": model, "input": list(TEXTS)}
        data = server.http.post("/v1/embeddings", json=body).raise_for_status().json()["data"]
        return [float(value) for one in data for value in one["embedding"]]
    body = {"model": model, "query": QUERY, "documents": list(TEXTS)}
    ranked = server.http.post("/v1/rerank", json=body).raise_for_status().json()["results"]
    return [float(one["relevance_score"]) for one in sorted(ranked, key=lambda one: int(one["index"]))]
