"""Embeddings, scores and transcripts of a GPU, compared with those of the machine's CPU."""

import asyncio
import re
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import Report
from benchmarks.models import STARTER_RECIPE
from benchmarks.peers.servers import Roundhouse

NAMES = ("starter-embed", "starter-rerank", "starter-speech")
SAMPLES = STARTER_RECIPE.parents[2] / "models" / "starter" / "pack" / "samples"
TEXTS = ("a cat sat on the mat", "the brake stops the engine of the train when the signal is red", "42", "naïve 日本語")
QUERY = "How does the brake of a train work?"
APART = 0.01
"""The most that a value may differ between 16-bit floats on the GPU and 16-bit integers on the CPU."""


async def run(report: Report, device: str, folder: Path) -> None:
    """Run both servers one after the other, because they would share the cores."""
    here, there = [await asyncio.to_thread(_answers, report, folder, kind) for kind in (device, "cpu")]
    for what in ("embeddings", "scores"):
        apart = max(abs(a - b) for a, b in zip(here[what], there[what], strict=True))
        report.add(f"{what} are those of a CPU", apart <= APART, apart=round(apart, 5))
    expected = {file.stem: file.read_text() for file in sorted(SAMPLES.glob("*.txt"))}
    wrong = {name: text for name, text in here["texts"].items() if _words(text) != _words(expected[name])}
    report.add("recordings are understood", not wrong, right=len(expected) - len(wrong), wrong=wrong)


def _answers(report: Report, folder: Path, device: str) -> dict[str, Any]:
    kind = "cpu" if device == "cpu" else "cuda"
    recipes = [STARTER_RECIPE.with_name(f"{name}.yaml") for name in NAMES]
    with Roundhouse(NAMES[0], folder / kind, recipes, "--device", kind, load=NAMES) as server:
        report.server(f"others, {kind}", server.command())
        body = {"model": NAMES[0], "input": list(TEXTS)}
        vectors = server.http.post("/v1/embeddings", json=body).raise_for_status().json()["data"]
        body = {"model": NAMES[1], "query": QUERY, "documents": list(TEXTS)}
        ranked = server.http.post("/v1/rerank", json=body).raise_for_status().json()["results"]
        texts = {file.stem: _text(server, file) for file in sorted(SAMPLES.glob("*.wav"))}
    scores = [one["relevance_score"] for one in sorted(ranked, key=lambda one: int(one["index"]))]
    return {
        "embeddings": [value for vector in vectors for value in vector["embedding"]],
        "scores": scores,
        "texts": texts,
    }


def _text(server: Roundhouse, file: Path) -> str:
    form = {"data": {"model": NAMES[2]}, "files": {"file": (file.name, file.read_bytes())}}
    return str(server.http.post("/v1/audio/transcriptions", **form).raise_for_status().json()["text"])  # type: ignore[arg-type]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
