"""Predicts which targets are good enough for a text. Fitted on judged answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from registry.errors import BadRequest
from routing.intents.head import Array, Heads, LettersHead, Mix, VectorHead
from routing.intents.model import Acceptance
from routing.intents.training import Example, TrainingOptions, counted, idf_of, letters_head, vector_head

YES, NO = "yes", "no"
BUCKETS = 1 << 13
OPTIONS = TrainingOptions(buckets=BUCKETS, typos=False)
STEPS = 21
LOSS = 0.01
"""Acceptance that may be lost for a cheaper threshold."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    """A text, and the verdict on each target's answer: 0 to 1, accepted from 0.5."""

    text: str
    accepted: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Point:
    """The results of one threshold on held-out texts."""

    threshold: float
    accepted: float
    """Mean verdict on the answers of the chosen targets."""
    price: float
    """Mean price per million tokens of the chosen targets."""
    shares: Mapping[str, float]
    """Share of the texts per target."""


def train_acceptance(
    judged: Sequence[JudgedText], vectors: Array | None = None, embedding: str | None = None
) -> Acceptance:
    """Train one head per target. Raises BadRequest."""
    targets = sorted({name for one in judged for name in one.accepted})
    idf = idf_of(counted([one.text for one in judged], BUCKETS))  # shared by all heads, which have different rows
    letters, heads = list[LettersHead](), list[VectorHead]()
    for target in targets:
        rows = [index for index, one in enumerate(judged) if target in one.accepted]
        examples = [Example(judged[p].text, YES if judged[p].accepted[target] >= 0.5 else NO) for p in rows]
        if len({example.label for example in examples}) < 2:
            raise BadRequest(
                f"All judged answers of '{target}' are accepted, or all are rejected: add rows of the other kind."
            )
        letters.append(letters_head(examples, [NO, YES], OPTIONS, idf))
        if vectors is not None:
            heads.append(vector_head(examples, vectors[rows], [NO, YES], OPTIONS))
    vector = None
    if heads:
        weights = np.stack([head.weights[:, 1] - head.weights[:, 0] for head in heads], axis=1)
        bias = np.array([head.bias[1] - head.bias[0] for head in heads], np.float32)
        vector = VectorHead(weights, bias, np.zeros((len(targets), weights.shape[0]), np.float32))
    joined = LettersHead(
        idf.astype(np.float32),
        np.stack([head.weights[:, 1] - head.weights[:, 0] for head in letters], axis=1).astype(np.float16),
        np.array([head.bias[1] - head.bias[0] for head in letters], np.float32),
    )
    both = Mix(0.5, 0.5) if vector is not None else None
    return Acceptance(Heads(tuple(targets), joined, vector, Mix(1.0), both, embedding if heads else None))


def curve(
    model: Acceptance, judged: Sequence[JudgedText], vectors: Array | None, prices: Mapping[str, float]
) -> list[Point]:
    """Return quality and cost at each threshold on held-out texts, choosing as `decide` does."""
    expected = [
        model.expected(one.text, None if vectors is None else vectors[index]) for index, one in enumerate(judged)
    ]
    points = []
    for step in range(STEPS):
        threshold = step / (STEPS - 1)
        chosen = [_cheapest(scores, threshold, prices) for scores in expected]
        judgements = [one.accepted[name] for one, name in zip(judged, chosen, strict=True) if name in one.accepted]
        names = sorted(set(chosen))
        points.append(
            Point(
                threshold,
                float(np.mean(judgements)) if judgements else 0.0,
                float(np.mean([prices.get(name, 0.0) for name in chosen])) if chosen else 0.0,
                {name: chosen.count(name) / len(chosen) for name in names},
            )
        )
    return points


def chosen(points: Sequence[Point]) -> Point:
    """Return the cheapest point that loses at most a hundredth of the best one's acceptance."""
    best = max(point.accepted for point in points)
    return min((point for point in points if point.accepted >= best - LOSS), key=lambda p: (p.price, -p.accepted))


def with_thresholds(model: Acceptance, alone: float, both: float | None = None) -> Acceptance:
    """Set the thresholds of letters alone and of both heads, whose scales differ."""
    heads = model.heads
    mix = heads.both if heads.both is None or both is None else replace(heads.both, threshold=both)
    return Acceptance(replace(heads, alone=replace(heads.alone, threshold=alone), both=mix))


def _cheapest(expected: Mapping[str, float], threshold: float, prices: Mapping[str, float]) -> str:
    enough = [name for name, p in expected.items() if p >= threshold]
    if enough:
        return min(enough, key=lambda name: prices.get(name, 0.0))
    return max(expected, key=lambda name: expected[name])
