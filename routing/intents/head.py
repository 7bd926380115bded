"""Linear heads over a text's n-grams and vector, and their confidence.

    z = letters * (tf-idf of the n-grams @ W + b) + vectors * (embedding @ V + c)
    p = softmax(z)
    confidence = sigmoid(gate . (log-odds of the likeliest intent, log-sum-exp of z, cosine to its centroid, 1))

The two heads are added, and the first works alone if there is no embedding. `letters` and `vectors` set both the
temperature and the weight of each head. Like the gate, they are fitted on held-out examples, once for both heads and
once for the first alone (Guo et al., 2017, for temperature scaling; Liu et al., 2020, for the energy).
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_CHARACTERS = 2000
"""Characters of a text that are read: half from its start, half from its end."""
LETTERS = (2, 3, 4, 5)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_WORD = re.compile(r"\w+|[^\w\s]")
_BLANKS = re.compile(r"\s+")
_DIGIT = re.compile(r"\d")

Indexes = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


class Pieces(NamedTuple):
    """Buckets of a text's n-grams without duplicates, and their weights: 1 + log(count)."""

    indexes: Indexes
    counts: Weights


def plain(text: str) -> str:
    """Normalise to lower case, single blanks, compatibility forms, digits as 0; cut long middles.

    Which number a text contains says nothing about its intent.
    """
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS // 2]} {text[-MAX_CHARACTERS // 2 :]}"
    return _BLANKS.sub(" ", _DIGIT.sub("0", unicodedata.normalize("NFKC", text).lower())).strip()


def pieces(text: str, buckets: int) -> Pieces:
    """Return the features of a text. buckets: a power of two."""
    text = plain(text)
    hashes = [*_letters(f" {text} "), *_words(text)]
    if not hashes:
        return Pieces(np.empty(0, np.int64), np.empty(0, np.float32))
    indexes = (np.concatenate(hashes) & np.uint64(buckets - 1)).astype(np.int64)
    unique, counts = np.unique(indexes, return_counts=True)
    return Pieces(unique, (1 + np.log(counts)).astype(np.float32))


def _letters(text: str) -> list[npt.NDArray[np.uint64]]:
    """Hash each run of letters, extending the hash of the run that is one shorter."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    hashes = []
    so_far = codes
    for length in range(2, LETTERS[-1] + 1):
        if len(codes) < length:
            break
        so_far = so_far[:-1] * _BASE + codes[length - 1 :]
        if length in LETTERS:
            hashes.append(_mixed(so_far ^ np.uint64(length)))
    return hashes


def _words(text: str) -> list[npt.NDArray[np.uint64]]:
    single = np.array([_word(word) for word in _WORD.findall(text)], np.uint64)
    return [_mixed(single), _mixed(single[:-1] * _MIX + single[1:])] if len(single) else []


def _word(word: str) -> int:
    value = 7
    for code in word.encode():
        value = (value * 1099511628211 ^ code) & 0xFFFFFFFFFFFFFFFF  # FNV-1
    return value


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix, so that the lower bits depend on all bits."""
    values = (values ^ (values >> np.uint64(30))) * _MIX
    return values ^ (values >> np.uint64(31))


Array = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class LettersHead:
    """Linear head over the n-grams of `pieces`."""

    idf: Array
    """(buckets,). 0 for unused buckets."""
    weights: Halves
    """(buckets, labels): one row per bucket, because a text uses few buckets."""
    bias: Array

    def logits(self, text: str) -> Array:
        features = pieces(text, len(self.idf))
        values = features.counts * self.idf[features.indexes]
        norm = float(np.sqrt(values @ values)) or 1.0
        logits_: Array = (values / norm) @ self.weights[features.indexes].astype(np.float32) + self.bias
        return logits_


@dataclass(frozen=True, slots=True, eq=False)
class VectorHead:
    """Linear head over an embedding of length 1."""

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
    """Parameters fitted on held-out examples for one set of features."""

    letters: float
    vectors: float = 0.0
    gate: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
    threshold: float = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Both heads, with their mixes."""

    labels: tuple[str, ...]
    letters: LettersHead
    vectors: VectorHead | None
    alone: Mix
    """Mix of the letters head alone."""
    both: Mix | None
    embedding: str | None
    """The model whose vectors they were fitted with."""

    def mix_for(self, vector: Array | None) -> Mix:
        fits = self.vectors is not None and vector is not None and len(vector) == len(self.vectors.weights)
        return self.both if fits and self.both is not None else self.alone

    def logits(self, text: str, vector: Array | None) -> Array:
        """Return mixed logits. Ignores the vector if it does not fit or no vector head was fitted."""
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
    """Return the gate's inputs for one text or many: (..., 4)."""
    best = np.clip(p.max(axis=-1), 1e-6, 1 - 1e-6)
    columns = (np.log(best / (1 - best)), log_sum_exp(z), np.broadcast_to(cosine, best.shape), np.ones_like(best))
    result: Array = np.stack(columns, axis=-1).astype(np.float32)
    return result


def sigmoid(x: Array) -> Array:
    result: Array = (1 / (1 + np.exp(-np.clip(x, -30, 30)))).astype(np.float32)
    return result
