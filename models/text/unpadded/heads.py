"""Heads of known cross-encoders, which turn an input's first state into a score."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Head = Callable[["Tensor"], "Tensor"]
"""Turns first states, N x width, into N x 1 logits."""


def _bert(network: Any) -> Head:
    return lambda firsts: network.classifier(network.bert.pooler(firsts[:, None]))


def _roberta(network: Any) -> Head:
    return lambda firsts: network.classifier(firsts[:, None])


def _modernbert(network: Any) -> Head | None:
    if network.config.classifier_pooling != "cls":
        return None  # it uses the mean of all states
    return lambda firsts: network.classifier(network.head(firsts))


HEADS: dict[str, Callable[[Any], Head | None]] = {
    "BertForSequenceClassification": _bert,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
    "ModernBertForSequenceClassification": _modernbert,
}


def head_of(network: Any) -> Head | None:
    """Return the network's head, or None if it is unknown or reads more than the first state."""
    make = HEADS.get(type(network).__name__)
    return make(network) if make is not None else None
