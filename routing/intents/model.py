"""Predictions of fitted heads: an intent, or the targets that are good enough."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from registry.errors import Unfit
from routing.decision import Vector
from routing.intents.head import Array, Heads, LettersHead, Mix, VectorHead, sigmoid, signs, softmax
from routing.intents.kinds import Kind
from routing.intents.spelling import EDGE, Spelling

OUT = "-"
"""Label of examples without an intent."""


@dataclass(frozen=True, slots=True, eq=False)
class IntentPrediction:
    """The predicted intent of a text."""

    labels: tuple[str, ...]
    probabilities: Array
    label: str | None
    """The likeliest intent, or None."""
    confidence: float
    """Probability that the label is right, calibrated on held-out examples."""
    threshold: float
    features: str
    """`letters`, or `letters and vector`."""

    def top(self, count: int) -> list[tuple[str, float]]:
        order = np.argsort(-self.probabilities)[:count]
        return [(self.labels[i], float(self.probabilities[i])) for i in order if self.labels[i] != OUT]


@dataclass(frozen=True, slots=True, eq=False)
class IntentModel:
    """Classifies texts. Never raises, on any text."""

    heads: Heads
    precision: float
    """The precision for which the thresholds were chosen."""
    spelling: Spelling | None = None
    """Spelling of the examples. None to use texts unchanged."""

    def read(self, text: str) -> str:
        """Return the text to classify and embed, with typing errors corrected."""
        return text if self.spelling is None else self.spelling.corrected(text)

    def predict(self, text: str, vector: "Vector | None" = None) -> IntentPrediction:
        """Predict the intent of a text. vector: embedding of what `read` returns for it."""
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
    """Predicts the likelihood that a target's answer is accepted. Labels are names of targets."""

    heads: Heads

    @property
    def threshold(self) -> float:
        """The acceptance that is enough if all features are available, chosen on held-out texts."""
        return (self.heads.both or self.heads.alone).threshold

    def threshold_for(self, vector: "Vector | None") -> float:
        """Return the threshold for the available features."""
        return self.heads.mix_for(vector).threshold

    def expected(self, text: str, vector: "Vector | None" = None) -> dict[str, float]:
        scores = sigmoid(self.heads.logits(text, vector))
        return {name: float(p) for name, p in zip(self.heads.labels, scores, strict=True)}


def _features(heads: Heads, vector: "Vector | None") -> str:
    return "letters" if heads.mix_for(vector) is heads.alone else "letters and vector"


MAX_LABELS, MAX_BUCKETS, MAX_DIMENSIONS = 2000, 1 << 18, 8192
MAX_WORDS, MAX_PAIRS = 1 << 16, 1 << 20
_KEY = "roundhouse"

Finite = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]


class _Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    letters: Finite
    vectors: Finite
    gate: tuple[Finite, Finite, Finite, Finite]
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1.001)]

    def mix(self) -> Mix:
        return Mix(self.letters, self.vectors, self.gate, self.threshold)


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON in the file's header."""

    format: Literal[1]
    kind: Kind
    labels: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=200)]],
        msgspec.Meta(min_length=1, max_length=MAX_LABELS),
    ]
    alone: _Mix
    both: _Mix | None
    embedding: Annotated[str, msgspec.Meta(max_length=200)] | None
    precision: Annotated[float, msgspec.Meta(ge=0, le=1)]


def to_bytes(model: IntentModel | Acceptance) -> bytes:
    heads = model.heads
    tensors: dict[str, Any] = {
        "idf": heads.letters.idf, "letters": heads.letters.weights, "letters_bias": heads.letters.bias
    }  # fmt: skip
    if heads.vectors is not None:
        tensors |= {"vectors": heads.vectors.weights, "vectors_bias": heads.vectors.bias}
        tensors |= {"centroids": heads.vectors.centroids}
    if isinstance(model, IntentModel) and model.spelling is not None:
        tensors |= _spelling_tensors(model.spelling)
    description = {
        "format": 1,
        "kind": "intents" if isinstance(model, IntentModel) else "complexity",
        "labels": heads.labels,
        "alone": asdict(heads.alone),
        "both": asdict(heads.both) if heads.both else None,
        "embedding": heads.embedding,
        "precision": model.precision if isinstance(model, IntentModel) else 0.0,
    }
    data: bytes = save({name: np.ascontiguousarray(t) for name, t in tensors.items()}, {_KEY: json.dumps(description)})
    return data


def from_bytes(data: bytes) -> IntentModel | Acceptance:
    """Read a model. Raises Unfit (bad_router_model) for anything that `to_bytes` would not write."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        description = msgspec.json.decode(header["__metadata__"][_KEY], type=_Header)
        tensors: Mapping[str, Any] = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _unfit(f"it is not a model of intents or of complexity ({type(error).__name__})") from error
    labels = len(description.labels)
    idf = _tensor(tensors, "idf", np.float32, 1)
    buckets = len(idf)
    if not 16 <= buckets <= MAX_BUCKETS or buckets & (buckets - 1):
        raise _unfit("the size of 'idf' is not a valid power of two")
    letters = LettersHead(
        idf,
        _tensor(tensors, "letters", np.float16, (buckets, labels)),
        _tensor(tensors, "letters_bias", np.float32, (labels,)),
    )
    vectors = None
    if "vectors" in tensors:
        weights = _tensor(tensors, "vectors", np.float32, 2)
        if len(weights) > MAX_DIMENSIONS:
            raise _unfit("its vectors have too many dimensions")
        shape = (len(weights), labels)
        vectors = VectorHead(
            _tensor(tensors, "vectors", np.float32, shape),
            _tensor(tensors, "vectors_bias", np.float32, (labels,)),
            _tensor(tensors, "centroids", np.float32, (labels, len(weights))),
        )
    both = description.both.mix() if description.both and vectors else None
    heads = Heads(tuple(description.labels), letters, vectors, description.alone.mix(), both, description.embedding)
    if description.kind == "complexity":
        return Acceptance(heads)
    return IntentModel(heads, description.precision, _spelling(tensors) if "words" in tensors else None)


# --- the spelling: words in one text, and counts ----------------------------------------------------
def _spelling_tensors(spelling: Spelling) -> dict[str, Any]:
    words = sorted(spelling.words)
    positions = {word: position for position, word in enumerate((EDGE, *words))}
    pairs = sorted((positions[a], positions[b], count) for (a, b), count in spelling.pairs.items())
    return {
        "words": np.frombuffer("\n".join(words).encode(), np.uint8),
        "word_counts": np.array([spelling.words[word] for word in words], np.int32),
        "pairs": np.array(pairs, np.int32).reshape(-1, 3),
    }


def _spelling(tensors: Mapping[str, Any]) -> Spelling:
    text = _tensor(tensors, "words", np.uint8, 1).tobytes()
    try:
        words = text.decode().split("\n") if text else []
    except UnicodeDecodeError:
        raise _unfit("its words are not text") from None
    counts = _tensor(tensors, "word_counts", np.int32, (len(words),))
    pairs = _tensor(tensors, "pairs", np.int32, 2)
    if len(words) > MAX_WORDS or len(pairs) > MAX_PAIRS or pairs.shape[1] != 3:
        raise _unfit("it has too many words or pairs of words")
    vocabulary = [EDGE, *words]
    if pairs.size and not 0 <= pairs[:, :2].min() <= pairs[:, :2].max() < len(vocabulary):
        raise _unfit("its pairs refer to missing words")
    pair_counts = {(vocabulary[a], vocabulary[b]): count for a, b, count in pairs.tolist()}
    return Spelling(dict(zip(words, counts.tolist(), strict=True)), pair_counts)


def _tensor(tensors: Mapping[str, Any], name: str, kind: type, shape: tuple[int, ...] | int) -> Any:
    tensor = tensors.get(name)
    wrong = tensor is None or tensor.dtype != kind
    if tensor is None or wrong or (tensor.ndim != shape if isinstance(shape, int) else tensor.shape != shape):
        raise _unfit(f"its tensor '{name}' is missing or has the wrong shape or type")
    if not math.isfinite(float(np.abs(tensor).max(initial=0.0))):
        raise _unfit(f"its tensor '{name}' has values that are not finite numbers")
    return tensor


def _unfit(why: str) -> Unfit:
    return Unfit("The router's model cannot be used.", [why], code="bad_router_model")
