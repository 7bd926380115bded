"""Measures of the quality of confidences. Arrays have one element per held-out example."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
BINS = 10


def threshold_for(confidence: Floats, right: Flags, precision: float) -> float:
    """Return the threshold that answers most with `precision` above it. Above 1 if there is none.

    It lies halfway between the lowest confidence above it and the highest below it (or 0), so that texts as clear as
    the held-out examples do not abstain because of a slightly lower confidence.
    """
    order = np.argsort(-confidence, kind="stable")
    so_far = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    last_of_equals = np.append(np.diff(confidence[order]) < 0, True)
    fits = np.flatnonzero((so_far >= precision) & last_of_equals)
    if not len(fits):
        return 1.001
    lowest, below = confidence[order][fits[-1]], confidence[order][fits[-1] + 1 :]
    return float(lowest + (below[0] if len(below) else 0.0)) / 2


def calibration_error(confidence: Floats, right: Flags) -> float:
    """Return the mean distance between confidence and accuracy, over ten equal bins."""
    if not len(right):
        return 0.0
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return float(
        sum(
            abs(float(confidence[in_bin].mean()) - float(right[in_bin].mean())) * float(in_bin.mean())
            for in_bin in (bins == number for number in range(BINS))
            if in_bin.any()
        )
    )


def auroc(inside: Floats, outside: Floats) -> float | None:
    """Return the chance that an example with an intent beats one without. None if either kind is missing."""
    if not len(inside) or not len(outside):
        return None
    from sklearn.metrics import roc_auc_score

    both = np.concatenate((inside, outside))
    return float(roc_auc_score(np.arange(len(both)) < len(inside), both))


@dataclass(frozen=True, slots=True)
class HeadMeasures:
    """Measures on held-out examples for one set of features."""

    features: str
    examples: int
    out_of_scope: int
    accuracy: float
    """Share of examples with an intent whose likeliest intent is right, at any confidence."""
    auroc: float | None
    calibration_error: float
    threshold: float
    answered: float
    """Share of examples with an intent that are answered at the threshold."""
    precision: float
    """Share of right answers."""
    out_of_scope_recall: float | None
    """Share of examples without an intent that abstain."""
    confusion: tuple[tuple[str, str, int], ...]
    """(right, predicted, count), most frequent first. '-' for no intent."""
