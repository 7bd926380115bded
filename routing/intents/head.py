"""Linear heads over the pieces of a text and over its vector, and how their outputs become a confidence.

    z = letters * (tf-idf of the pieces @ W + b) + vectors * (embedding @ V + c)
    p = softmax(z)
    confidence = sigmoid(gate . (log-odds of the likeliest intent, log-sum-exp of z, cosine to its centroid, 1))

Two heads, added, so that the first one alone answers where there is no embedding. `letters` and `vectors` are both the
temperature and how much each head counts; like the gate they are fitted on held-out examples, once for both heads
together and once for the first alone (Guo et al., 2017, for temperature scaling; Liu et al., 2020, for the energy).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from routing.intents.ngrams import pieces

Array = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class LettersHead:
    """Over `routing.intents.ngrams`."""

    idf: Array
    """(buckets,); 0: not used."""
    weights: Halves
    """(buckets, labels): a row per bucket, as a text reads few of them."""
    bias: Array

    def logits(self, text: str) -> Array:
        features = pieces(text, len(self.idf))
        values = features.counts * self.idf[features.indexes]
        norm = float(np.sqrt(values @ values)) or 1.0
        logits_: Array = (values / norm) @ self.weights[features.indexes].astype(np.float32) + self.bias
        return logits_


@dataclass(frozen=True, slots=True, eq=False)
class VectorHead:
    """Over an embedding of length 1."""

    weights: Array
    """(dimensions, labels)"""
    bias: Array
    centroids: Array
    """(labels, dimensions), each of length 1: the mean of a label's examples."""

    def logits(self, vector: Array) -> Array:
        logits_: Array = vector @ self.weights + self.bias
        return logits_


@dataclass(frozen=True, slots=True)
class Mix:
    """What was fitted on held-out examples for one set of features."""

    letters: float
    vectors: float = 0.0
    gate: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
    threshold: float = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Both heads with their mixes."""

    labels: tuple[str, ...]
    letters: LettersHead
    vectors: VectorHead | None
    alone: Mix
    """Mix for letters alone."""
    both: Mix | None
    embedding: str | None
    """The model whose vectors they were fitted with."""

    def mix_for(self, vector: Array | None) -> Mix:
        fits = self.vectors is not None and vector is not None and len(vector) == len(self.vectors.weights)
        return self.both if fits and self.both is not None else self.alone

    def logits(self, text: str, vector: Array | None) -> Array:
        """Mixed; the vector is left out where it is of another model's size, or nothing was fitted for it."""
        mix, z = self.mix_for(vector), self.letters.logits(text)
        if mix is self.alone or self.vectors is None or vector is None:
            return (mix.letters * z).astype(np.float32)
        return (mix.letters * z + mix.vectors * self.vectors.logits(vector)).astype(np.float32)


def softmax(z: Array) -> Array:
    shifted = np.exp(z - z.max(axis=-1, keepdims=True))
    probabilities: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


def log_sum_exp(z: Array) -> Array:
    top = z.max(axis=-1, keepdims=True)
    result: Array = (top + np.log(np.exp(z - top).sum(axis=-1, keepdims=True)))[..., 0]
    return result


def signs(z: Array, p: Array, cosine: Array | float) -> Array:
    """What the gate looks at, for one text or for many: (..., 4)."""
    best = np.clip(p.max(axis=-1), 1e-6, 1 - 1e-6)
    columns = (np.log(best / (1 - best)), log_sum_exp(z), np.broadcast_to(cosine, best.shape), np.ones_like(best))
    result: Array = np.stack(columns, axis=-1).astype(np.float32)
    return result


def sigmoid(x: Array) -> Array:
    result: Array = (1 / (1 + np.exp(-np.clip(x, -30, 30)))).astype(np.float32)
    return result
