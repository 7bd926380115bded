"""The held-out set: documents that training never saw, each query with one right passage and hard wrong ones."""

from __future__ import annotations

import json
import lzma
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text import Passage

CANDIDATES = 24
HARD, SAME_DOCUMENT = 15, 5
NEAR_DUPLICATE = 0.95
"""Wrong passages with a cosine to the right one above this say the same, and are no candidates."""


@dataclass(frozen=True, slots=True)
class Case:
    """A query with `CANDIDATES` passage numbers, of which the first is right, and their cosines."""

    split: str
    source: str
    query: str
    candidates: list[int]
    cosines: list[float]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Cases and the passages that they refer to by number."""

    passages: list[str]
    cases: list[Case]

    def save(self, path: Path) -> None:
        """Write the set as compressed JSON."""
        data = {"passages": self.passages, "cases": [asdict(case) for case in self.cases]}
        path.write_bytes(lzma.compress(json.dumps(data, ensure_ascii=False).encode(), preset=9))

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        """Read what `save` wrote."""
        data: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
        return cls(data["passages"], [Case(**case) for case in data["cases"]])


def ndcg_at_10(scores: Sequence[float]) -> float:
    """Return the nDCG@10 of a case whose first candidate is the only right one. Ties count against it."""
    place = 1 + sum(other >= scores[0] for other in scores[1:])
    return 1 / math.log2(1 + place) if place <= 10 else 0.0


def build(
    passages: Sequence[Passage], vectors: NDArray[np.float32], requested: Sequence[tuple[int, str, str]],
    query_vectors: NDArray[np.float32],
) -> HeldOut:  # fmt: skip
    """Choose the candidates: the right one, the wrong ones that embeddings rank highest, same-document ones, others.

    `vectors` [passages, 384] and `query_vectors` [requested, 384] have unit length. `requested` has (number of the
    right passage, query, split).
    """
    of_document: dict[str, list[int]] = {}
    for number, passage in enumerate(passages):
        of_document.setdefault(passage.document, []).append(number)
    cases, used = list[Case](), dict[int, int]()
    for (right, query, split), vector in zip(requested, query_vectors, strict=True):
        rng = random.Random(f"{passages[right].fact}:{query}")
        cosines, twins = vectors @ vector, vectors @ vectors[right]
        wrong = [n for n, p in enumerate(passages) if p.fact != passages[right].fact and twins[n] < NEAR_DUPLICATE]
        wrong.sort(key=lambda n: (-float(cosines[n]), n))
        chosen = wrong[:HARD]
        near = [n for n in wrong[HARD:] if passages[n].document == passages[right].document]
        chosen += rng.sample(near, min(SAME_DOCUMENT, len(near)))
        rest = [n for n in wrong[HARD:] if n not in chosen]
        chosen += rng.sample(rest, min(CANDIDATES - 1 - len(chosen), len(rest)))
        numbers = [used.setdefault(n, len(used)) for n in [right, *chosen]]
        scores = [round(float(cosines[n]), 4) for n in [right, *chosen]]
        source = passages[right].document.split("/")[0]
        cases.append(Case(split, source, query, numbers, scores))
    return HeldOut([passages[n].text for n in used], cases)


def summary(held_out: HeldOut, scores: Sequence[Sequence[float]], split: str) -> dict[str, float]:
    """Return the mean nDCG@10 per kind of source of `split`, and over its documents, for which there is an aim.

    'documents' are manual and docstrings. WordNet glosses and generated facts are only reported separately.
    """
    values: dict[str, list[float]] = {}
    for case, row in zip(held_out.cases, scores, strict=True):
        if case.split == split:
            kind = case.source if case.source in ("manual", "wordnet", "facts") else "docstrings"
            value = ndcg_at_10(row)
            values.setdefault(kind, []).append(value)
            if kind in ("manual", "docstrings"):
                values.setdefault("documents", []).append(value)
    return {kind: round(sum(v) / len(v), 4) for kind, v in sorted(values.items())}
