"""Measures of confidence quality. Arrays have an element per held-out example."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
BINS = 10


def threshold_for(confidence: Floats, right: Flags, precision: float) -> float:
    """The threshold with `precision` right answers above it that answers most; above 1: none.

    It stands halfway between the lowest confidence that it lets through and the highest that it does not, or 0: what is
    as clear as the held-out examples, and by chance a little less confident, must not abstain.
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
    """Mean distance of confidence and share of right ones, over ten equal bins."""
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
    """Chance that an intent's example beats one of none; None: one kind is missing."""
    if not len(inside) or not len(outside):
        return None
    from sklearn.metrics import roc_auc_score

    both = np.concatenate((inside, outside))
    return float(roc_auc_score(np.arange(len(both)) < len(inside), both))


@dataclass(frozen=True, slots=True)
class HeadMeasures:
    """Measures on held-out examples, for one set of features."""

    features: str
    examples: int
    out_of_scope: int
    accuracy: float
    """The likeliest intent is the right one; of examples that have one, whatever the confidence."""
    auroc: float | None
    calibration_error: float
    threshold: float
    answered: float
    """Share of examples with an intent that get an answer at the threshold."""
    precision: float
    """Precision of the answered examples."""
    out_of_scope_recall: float | None
    """Share of examples without an intent that abstained."""
    confusion: tuple[tuple[str, str, int], ...]
    """(right, predicted, count), most often first; '-' stands for no intent."""
