"""Heads that turn an input's first state into a score, for the cross-encoders that are known."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Head = Callable[["Tensor"], "Tensor"]
"""First states, N x width, to N x 1 logits."""


def _bert(network: Any) -> Head:
    return lambda firsts: network.classifier(network.bert.pooler(firsts[:, None]))


def _roberta(network: Any) -> Head:
    return lambda firsts: network.classifier(firsts[:, None])


def _modernbert(network: Any) -> Head | None:
    if network.config.classifier_pooling != "cls":
        return None  # it takes the mean of all states
    return lambda firsts: network.classifier(network.head(firsts))


HEADS: dict[str, Callable[[Any], Head | None]] = {
    "BertForSequenceClassification": _bert,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
    "ModernBertForSequenceClassification": _modernbert,
}


def head_of(network: Any) -> Head | None:
    """The network's head; None: not known, or it reads more than the first state."""
    make = HEADS.get(type(network).__name__)
    return make(network) if make is not None else None
