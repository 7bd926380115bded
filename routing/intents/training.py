"""Trains a model from labelled examples. Needs scikit-learn, which decisions do not.

1. Both heads are fitted on the examples that are not held out, each by logistic regression.
2. Fitted on the held-out ones: the weight of each head (including the temperature), the gate, the threshold.
3. The same for the letters head alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, diags
from sklearn.linear_model import LogisticRegression

from registry.errors import BadRequest
from routing.intents.head import (
    Array,
    Heads,
    LettersHead,
    Mix,
    VectorHead,
    log_sum_exp,
    pieces,
    sigmoid,
    signs,
    softmax,
)
from routing.intents.measures import HeadMeasures, auroc, calibration_error, threshold_for
from routing.intents.model import OUT, IntentModel
from routing.intents.spelling import Spelling, mistyped

Matrix = npt.NDArray[np.float64]
SEED = 20


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    label: str
    """`OUT` if it belongs to no intent."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    precision: float = 0.99
    """Precision of answers for which thresholds are chosen."""
    held_out: float = 0.2
    buckets: int | None = None
    """None to choose by the number of examples."""
    strength: float = 100.0
    """Inverse regularisation strength of the letters head (scikit-learn's C)."""
    vector_strength: float = 30.0
    iterations: int = 70
    typos: bool = True
    """Also train the letters head on a copy of each example with typing errors."""


DEFAULTS = TrainingOptions()


@dataclass(frozen=True, slots=True)
class TrainingResult:
    model: IntentModel
    measured: tuple[HeadMeasures, ...]
    """Measures of the letters head alone, then of both heads."""


def split(texts: Sequence[str], labels: Sequence[str], share: float) -> tuple[list[int], list[int]]:
    """Return the indexes to fit and to hold out, split by label. Two different texts give at least one of each.

    Repetitions of a text stay together: measured on texts that were fitted, anything is right.
    """
    repetitions: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        repetitions.setdefault(" ".join(text.split()).casefold(), []).append(index)
    by_label: dict[str, list[list[int]]] = {}
    for indexes in repetitions.values():
        by_label.setdefault(labels[indexes[0]], []).append(indexes)
    fit, held_out = list[int](), list[int]()
    for label in sorted(by_label):
        different = by_label[label]
        Random(f"{SEED} {label}").shuffle(different)
        cut = min(len(different) - 1, max(1, round(len(different) * share)))
        held_out += chain.from_iterable(different[:cut])
        fit += chain.from_iterable(different[cut:])
    return sorted(fit), sorted(held_out)


def train(
    examples: Sequence[Example],
    held: Sequence[Example],
    vectors: tuple[Array, Array] | None = None,
    embedding: str | None = None,
    options: TrainingOptions = DEFAULTS,
    spelling: Spelling | None = None,
) -> TrainingResult:
    """Train an intent model. vectors: of fitted and held-out texts, corrected by `spelling`.

    Raises BadRequest.
    """
    labels = sorted({example.label for example in examples})
    if len([label for label in labels if label != OUT]) < 2:
        raise BadRequest("Give examples of at least two intents: with only one, a router has nothing to distinguish.")
    right = np.array([labels.index(e.label) if e.label in labels else -1 for e in held])
    letters = letters_head(examples, labels, options)
    read = [e.text if spelling is None else spelling.corrected(e.text) for e in held]
    z_letters = np.stack([letters.logits(text) for text in read])
    alone = _mix(z_letters, None, np.zeros(len(held), np.float32), labels, right, options.precision)
    measured = [_measure("letters", alone, z_letters, None, None, labels, right)]
    head, both = None, None
    if vectors is not None:
        head = vector_head(examples, vectors[0], labels, options)
        z_vectors = vectors[1] @ head.weights + head.bias
        cosines = vectors[1] @ head.centroids.T
        both = _mix(z_letters, z_vectors, cosines, labels, right, options.precision)
        measured.append(_measure("letters and vector", both, z_letters, z_vectors, cosines, labels, right))
    heads = Heads(tuple(labels), letters, head, alone, both, embedding if head else None)
    return TrainingResult(IntentModel(heads, options.precision, spelling), tuple(measured))


# --- the heads -------------------------------------------------------------------------------------------------------
def letters_head(
    examples: Sequence[Example], labels: Sequence[str], options: TrainingOptions, idf: Matrix | None = None
) -> LettersHead:
    """Fit the letters head. idf: computed by `idf_of` on more texts, to share it among heads."""
    texts, names = [e.text for e in examples], [e.label for e in examples]
    buckets = options.buckets or min(1 << 16, max(1 << 12, 1 << (len(texts) * 8 - 1).bit_length()))
    if options.typos:
        rng = Random(SEED)
        texts, names = texts + [mistyped(text, rng) for text in texts], names * 2
    counts = counted(texts, buckets)
    idf = idf_of(counts) if idf is None else idf
    weighted = counts @ diags(idf)
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1)).ravel())
    used = np.flatnonzero(idf)
    features = (diags(1 / np.maximum(norms, 1e-9)) @ weighted).tocsr()[:, used]
    fitted_weights, bias = _logistic(features, names, labels, options.strength, options.iterations)
    weights = np.zeros((buckets, len(labels)), np.float16)
    weights[used] = fitted_weights
    return LettersHead(idf.astype(np.float32), weights, bias)


def idf_of(counts: csr_matrix) -> Matrix:
    """Return inverse document frequencies, (buckets,). 0 if too few texts contain a bucket."""
    texts = counts.shape[0]
    having = np.asarray((counts > 0).sum(0)).ravel()
    return np.where(having >= (2 if texts > 200 else 1), np.log((1 + texts) / (1 + having)) + 1, 0.0)


def vector_head(
    examples: Sequence[Example], vectors: Array, labels: Sequence[str], options: TrainingOptions
) -> VectorHead:
    names = [example.label for example in examples]
    weights, bias = _logistic(
        vectors.astype(np.float64), names, labels, options.vector_strength, options.iterations * 2
    )
    which = np.array([labels.index(name) for name in names])
    means = np.stack([vectors[which == index].mean(0) for index in range(len(labels))])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    return VectorHead(weights, bias, means.astype(np.float32))


def counted(texts: Sequence[str], buckets: int) -> csr_matrix:
    counted_texts = [pieces(text, buckets) for text in texts]
    indexes = np.concatenate([text.indexes for text in counted_texts])
    counts = np.concatenate([text.counts for text in counted_texts]).astype(np.float64)
    ends = np.cumsum([0, *(len(text.indexes) for text in counted_texts)])
    return csr_matrix((counts, indexes, ends), shape=(len(texts), buckets))


def _logistic(
    features: Matrix | csr_matrix, names: Sequence[str], labels: Sequence[str], strength: float, iterations: int
) -> tuple[Array, Array]:
    """Fit weights (features, labels) and bias (labels,).

    With two labels, scikit-learn fits one column, and the other is its negative.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last steps do not change decisions
        fitted = LogisticRegression(C=strength, max_iter=iterations, tol=1e-6).fit(features, names)
    weights, bias = fitted.coef_.T, fitted.intercept_
    if len(labels) == 2:
        weights, bias = np.hstack((-weights, weights)) / 2, np.array((-bias[0], bias[0])) / 2
    return weights.astype(np.float32), bias.astype(np.float32)


# --- on held-out examples --------------------------------------------------------------------------------------------
def _mix(
    letters: Array, vectors: Array | None, cosines: Array, labels: Sequence[str], right: npt.NDArray[np.int_],
    precision: float,
) -> Mix:  # fmt: skip
    """Fit the weights of the heads by held-out likelihood, then the gate and the threshold."""
    labelled = right >= 0

    def loss(scales: Matrix) -> float:
        z = scales[0] * letters[labelled] + (scales[1] * vectors[labelled] if vectors is not None else 0.0)
        return float((log_sum_exp(z) - z[np.arange(len(z)), right[labelled]]).mean())

    start = [1.0] if vectors is None else [0.5, 0.5]
    bounds = [(0.01, 20.0)] * len(start)
    scales_fitted = minimize(loss, start, bounds=bounds, method="L-BFGS-B").x if labelled.any() else start
    mix = Mix(float(scales_fitted[0]), float(scales_fitted[1]) if vectors is not None else 0.0)
    inputs, correct, predicted = _gate_inputs(mix, letters, vectors, cosines, labels, right)
    answerable = predicted != _out(labels)
    if answerable.any() and len(set(correct[answerable].tolist())) == 2:
        gate = LogisticRegression(C=10.0, fit_intercept=False, max_iter=500).fit(
            inputs[answerable], correct[answerable]
        )
        mix = replace(mix, gate=tuple(float(value) for value in gate.coef_[0]))
    confidence = np.where(answerable, sigmoid(inputs @ np.asarray(mix.gate, np.float32)), 0.0)
    return replace(mix, threshold=threshold_for(confidence.astype(np.float32), correct, precision))


def _out(labels: Sequence[str]) -> int:
    return labels.index(OUT) if OUT in labels else -2


def _gate_inputs(
    mix: Mix, letters: Array, vectors: Array | None, cosines: Array | None, labels: Sequence[str],
    right: npt.NDArray[np.int_],
) -> tuple[Array, npt.NDArray[np.bool_], npt.NDArray[np.int_]]:  # fmt: skip
    """Return the gate's inputs, whether the likeliest label is right, and its index."""
    z = mix.letters * letters + (mix.vectors * vectors if vectors is not None else 0.0)
    p = softmax(z)
    predicted = p.argmax(1)
    cosine = cosines[np.arange(len(predicted)), predicted] if cosines is not None and cosines.ndim == 2 else 0.0
    return signs(z, p, cosine), (predicted == right) & (predicted != _out(labels)), predicted


def _measure(
    features: str, mix: Mix, letters: Array, vectors: Array | None, cosines: Array | None, labels: Sequence[str],
    right: npt.NDArray[np.int_],
) -> HeadMeasures:  # fmt: skip
    inputs, correct, predicted = _gate_inputs(mix, letters, vectors, cosines, labels, right)
    out = _out(labels)
    confidence = np.where(predicted == out, 0.0, sigmoid(inputs @ np.asarray(mix.gate, np.float32))).astype(np.float32)
    inside = (right >= 0) & (right != out)
    answered = confidence >= mix.threshold
    names = [*labels, OUT]
    pairs = Counter(
        (names[int(r)] if r >= 0 else OUT, names[int(t)] if a else OUT)
        for r, t, a in zip(right, predicted, answered, strict=True)
    )
    return HeadMeasures(
        features,
        int(inside.sum()),
        int((~inside).sum()),
        float(correct[inside].mean()) if inside.any() else 0.0,
        auroc(confidence[inside], confidence[~inside]),
        calibration_error(confidence[predicted != out], correct[predicted != out]),
        mix.threshold,
        float(answered[inside].mean()) if inside.any() else 0.0,
        float(correct[answered].mean()) if answered.any() else 1.0,
        float((~answered[~inside]).mean()) if (~inside).any() else None,
        tuple((r, t, count) for (r, t), count in pairs.most_common()),
    )
