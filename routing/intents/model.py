"""What fitted heads tell of a text: its intent, or which targets are good enough for it."""

from dataclasses import dataclass

import numpy as np

from routing.decision import Vector
from routing.intents.head import Array, Heads, sigmoid, signs, softmax
from routing.intents.spelling import Spelling

OUT = "-"
"""The label of examples that belong to no intent."""


@dataclass(frozen=True, slots=True, eq=False)
class IntentPrediction:
    """What a text seems to want."""

    labels: tuple[str, ...]
    probabilities: Array
    label: str | None
    """The likeliest; None: none of them."""
    confidence: float
    """That the label is right, by held-out examples."""
    threshold: float
    features: str
    """`letters`, or `letters and vector`."""

    def top(self, count: int) -> list[tuple[str, float]]:
        order = np.argsort(-self.probabilities)[:count]
        return [(self.labels[i], float(self.probabilities[i])) for i in order if self.labels[i] != OUT]


@dataclass(frozen=True, slots=True, eq=False)
class IntentModel:
    """Raises nothing on any text."""

    heads: Heads
    precision: float
    """That the thresholds were chosen for."""
    spelling: Spelling | None = None
    """Spelling of the examples; None: texts are used as they are."""

    def read(self, text: str) -> str:
        """What is looked at, and what `vector` is to be of: without the typing errors that it can tell."""
        return text if self.spelling is None else self.spelling.corrected(text)

    def predict(self, text: str, vector: Vector | None = None) -> IntentPrediction:
        """vector: of what `read` makes of the text."""
        heads, mix = self.heads, self.heads.mix_for(vector)
        z = heads.logits(self.read(text), vector)
        p = softmax(z)
        best = int(p.argmax())
        if heads.labels[best] == OUT:
            return IntentPrediction(heads.labels, p, None, 0.0, mix.threshold, _features(heads, vector))
        cosine = 0.0
        if mix is heads.both and heads.vectors is not None and vector is not None:
            cosine = float(heads.vectors.centroids[best] @ vector)
        confidence = float(sigmoid(signs(z, p, cosine) @ np.asarray(mix.gate, np.float32)))
        return IntentPrediction(
            heads.labels, p, heads.labels[best], confidence, mix.threshold, _features(heads, vector)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Acceptance:
    """How likely it is that a target's answer is accepted; its labels are names of targets."""

    heads: Heads

    @property
    def threshold(self) -> float:
        """That is enough, by all that it can look at, as it was chosen on held-out texts."""
        return (self.heads.both or self.heads.alone).threshold

    def threshold_for(self, vector: Vector | None) -> float:
        """The same by what there is to look at."""
        return self.heads.mix_for(vector).threshold

    def expected(self, text: str, vector: Vector | None = None) -> dict[str, float]:
        scores = sigmoid(self.heads.logits(text, vector))
        return {name: float(p) for name, p in zip(self.heads.labels, scores, strict=True)}


def _features(heads: Heads, vector: Vector | None) -> str:
    return "letters" if heads.mix_for(vector) is heads.alone else "letters and vector"
