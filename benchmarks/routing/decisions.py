"""The time of a decision, with and without the embedding model, at 1 and 16 clients.

Measures `POST /v1/route` by the response's `Server-Timing: decide`, which includes waiting for the embedding but not
HTTP, on the starter's router and, in a full run, on one with 150 intents. The latter is compared with aurelio's
semantic-router in its own process, on the same examples and with 16 concurrent calls. Its encoder requests vectors from
the same server's embedding model over HTTP, as its encoders for OpenAI do.
"""

import json
import subprocess
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Bench
from benchmarks.load.client import request_bytes
from benchmarks.load.clients import Cell, closed_loop
from benchmarks.load.stats import percentile
from benchmarks.peers.servers import Roundhouse
from benchmarks.report.environment import ROOT
from benchmarks.routing.data import Intents
from routing.intents.measures import auroc, threshold_for
from routing.intents.model import OUT, to_bytes
from routing.intents.training import TrainingResult

STARTER = ROOT / "recipes" / "starter"
PEER = ROOT / ".venv-routing" / "bin" / "python"
SCRIPT = ROOT / "benchmarks" / "peers" / "semantic_router_script.py"
TEXTS = (
    "3 March 2024",
    "is 40 more than 7",
    "lovely bread!",
    "hello",
    "send 90 euros to anna please",
    "what a day it was",
)
CLIENTS, QUERIES = 16, 600


async def measure(bench: Bench, data: Intents | None, fitted: TrainingResult | None) -> None:
    s = bench.settings
    recipes = [STARTER / f"{name}.yaml" for name in ("starter-chat", "starter-embed", "auto")]
    for kind, load in (("letters", "starter-chat"), ("vectors", "starter-embed")):
        with Roundhouse(load, s.work / "routing" / kind, recipes, load=[load]) as server:
            for level in (1, CLIENTS):
                await _latency(bench, server, "auto", TEXTS * s.pick(100, 40, 4), kind, level)
            if data is not None and fitted is not None:
                _add(server, fitted)
                texts = [example.text for example in data.held[:: len(data.held) // QUERIES]]
                await _latency(bench, server, "intents150", texts, f"intents150.{kind}", CLIENTS)
                if kind == "vectors":
                    _peer(bench, server, data, texts)
    for name in ("letters", "vectors"):
        p50, p99 = (1.0, 3.0) if name == "letters" else (4.0, 10.0)
        words = "without vectors" if name == "letters" else "with vectors"
        bench.bar(f"decision {words}, 16 clients, p50", f"{name}.c16.p50", "<=", p50)
        bench.bar(f"decision {words}, 16 clients, p99", f"{name}.c16.p99", "<=", p99)


async def _latency(bench: Bench, server: Roundhouse, router: str, texts: Sequence[str], key: str, level: int) -> None:
    bodies = [{"model": router, "messages": [{"role": "user", "content": text}]} for text in texts]
    requests = [request_bytes("/v1/route", body) for body in bodies]
    await closed_loop(server, requests[: 4 * CLIENTS], level)
    cells: list[Cell] = []
    for _ in range(bench.settings.rounds):
        cells.append(await closed_loop(server, requests, level))
        bench.count(f"{key} c{level}", cells[-1])
    good = [cell for cell in cells if cell.good]
    for q in (50, 99):
        bench.figure(f"{key}.c{level}.p{q}", [percentile(_decided(cell), q) for cell in good], "ms")
        bench.figure(f"{key}.c{level}.http_p{q}", [cell.total_ms(q) for cell in good], "ms")


def _decided(cell: Cell) -> list[float]:
    return [float(reply.header("server-timing").removeprefix("decide;dur=")) for reply in cell.good]


def _add(server: Roundhouse, fitted: TrainingResult) -> None:
    """Create a router over the 150 intents that sends all of them to the starter's chat model."""
    labels = [label for label in fitted.model.heads.labels if label != OUT]
    spec = {
        "id": "intents150", "targets": [{"name": "starter-chat"}], "default": "starter-chat",
        "intents": {"embedding": "starter-embed", "routes": {label: ["starter-chat"] for label in labels}},
    }  # fmt: skip
    server.http.post("/v1/routers", json=spec).raise_for_status()
    body = {"safetensors": b64encode(to_bytes(fitted.model)).decode()}
    server.http.put("/v1/routers/intents150/fitted/intents", json=body).raise_for_status()


# --- the peer --------------------------------------------------------------------------------------------------------
def _peer(bench: Bench, server: Roundhouse, data: Intents, queries: Sequence[str]) -> None:
    if not PEER.exists():
        bench.note("semantic-router: not measured, scripts/install-clients routing has not been run")
        return
    folder = bench.settings.work / "routing" / "peer"
    report = _ask(folder, data, {"url": str(server.http.base_url), "asked": list(queries), "clients": CLIENTS})
    bench.note(f"semantic-router {report['version']}, fitted (Platt) on the same held-out examples")
    labels = [example.label for example in data.held]
    confidence = np.array([c for _, c in report["held"]], np.float32)
    right = np.array([name == label for (name, _), label in zip(report["held"], labels, strict=True)])
    inside = np.array([label != OUT for label in labels])
    threshold = threshold_for(confidence[inside], right[inside], 0.99)
    bench.figure("intents.semantic-router.accuracy", [float(right[inside].mean())], "share")
    bench.figure("intents.semantic-router.auroc", [auroc(confidence[inside], confidence[~inside]) or 0.0], "share")
    bench.figure("intents.semantic-router.answered", [float((confidence[inside] >= threshold).mean())], "share")
    for q in (50, 99):
        rounds = [percentile(result, q) for result in report["milliseconds"]]
        bench.figure(f"intents150.vectors.semantic-router.c{CLIENTS}.p{q}", rounds, "ms")


def _ask(folder: Path, data: Intents, more: dict[str, Any]) -> Any:
    """Run the peer's script on the same examples with the same vectors; returns its result."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = {"fit": data.fit, "held": data.held}
    given = {name: [(e.text, None if e.label == OUT else e.label) for e in result] for name, result in examples.items()}
    (folder / "given.json").write_text(json.dumps({**given, **more}))
    np.save(folder / "vectors.npy", np.concatenate((data.fit_vectors, data.plain_vectors)))
    command = [PEER, SCRIPT, folder]
    # its standard error is not captured, so that the cause of a failure is visible
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=1800)
    return json.loads(done.stdout.splitlines()[-1])
