"""What sentence-transformers computes after a network: vectors by pooling, or logits by a classifier."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from models.batching.worker import R
from models.text.bert import pools_rows

if TYPE_CHECKING:
    from torch import Tensor

Row = npt.NDArray[np.float32]
Classifier = Callable[["Tensor"], "Tensor"]
"""Turns first states, N x width, into N x 1 logits."""


class EncoderHead(Protocol[R]):
    """Returns one result for each input: a vector or a score."""

    def unknown(self) -> str:
        """Return why the model surely cannot run without padding; '' if it may."""
        ...

    def of_tokens(self, features: dict[str, Any]) -> list[R]:
        """Run the whole model on padded tokens."""
        ...

    def of_states(self, features: dict[str, Any]) -> list[R]:
        """Read results from states without padding, under the names that sentence-transformers' Pooling reads."""
        ...


class PoolingHead:
    """The modules of a SentenceTransformer after its network."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def unknown(self) -> str:
        return "" if pools_rows(self._model) else "its modules are unknown"

    def of_tokens(self, features: dict[str, Any]) -> list[Row]:
        return self._rows(self._model(features))

    def of_states(self, features: dict[str, Any]) -> list[Row]:
        for module in list(self._model)[1:]:
            features = module(features)
        return self._rows(features)

    def _rows(self, features: dict[str, Any]) -> list[Row]:
        return list(features["sentence_embedding"][:, : self._model.truncate_dim].float().cpu().numpy())


class ScoringHead:
    """A CrossEncoder's classifier, for raw logits."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._classifier = classifier_of(model[0].model) if len(model) == 1 else None
        self._generates = getattr(model[0], "transformer_task", "") == "text-generation"
        """Whether it scores by the probability of a next token."""

    def unknown(self) -> str:
        return "" if self._classifier is not None else "its head is unknown"

    def of_tokens(self, features: dict[str, Any]) -> list[float]:
        if self._generates:
            # otherwise logits of the whole vocabulary for each token, which are gigabytes
            features["logits_to_keep"] = 1
        return _logits(self._model(features)["scores"], len(features["input_ids"]))

    def of_states(self, features: dict[str, Any]) -> list[float]:
        assert self._classifier is not None
        firsts = features["token_embeddings"][0, features["cu_seq_lens_q"][:-1]]
        return _logits(self._classifier(firsts), len(firsts))


def _bert(network: Any) -> Classifier:
    return lambda firsts: network.classifier(network.bert.pooler(firsts[:, None]))


def _roberta(network: Any) -> Classifier:
    return lambda firsts: network.classifier(firsts[:, None])


def _modernbert(network: Any) -> Classifier | None:
    if network.config.classifier_pooling != "cls":
        return None  # it uses the mean of all states
    return lambda firsts: network.classifier(network.head(firsts))


CLASSIFIERS: dict[str, Callable[[Any], Classifier | None]] = {
    "BertForSequenceClassification": _bert,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
    "ModernBertForSequenceClassification": _modernbert,
}


def classifier_of(network: Any) -> Classifier | None:
    """Return the network's classifier, or None if it is unknown or reads more than the first state."""
    make = CLASSIFIERS.get(type(network).__name__)
    return make(network) if make is not None else None


def _logits(scores: "Tensor", count: int) -> list[float]:
    values: list[float] = scores.float().reshape(count).cpu().tolist()
    return values
