"""Call a CrossEncoder on token ids, below `predict`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from models.text.bert import of_scorer
from models.text.encoder import Encoder, tensors
from models.text.tokens import Ids, Tokens
from models.text.unpadded.network import UnpaddedNetwork
from models.text.unpadded.packing import Packing

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


class Scorer(Encoder[float]):
    """A CrossEncoder that turns token ids into raw logits."""

    def __init__(self, model: Any, tokens: Tokens, device: str, packs: bool = False) -> None:
        super().__init__(model, tokens, device, of_scorer(model, device) if packs else None)
        self._head = head_of(model[0].model) if len(model) == 1 else None
        self.generates = getattr(model[0], "transformer_task", "") == "text-generation"
        """Whether it scores by the probability of a next token."""

    def _unknown(self) -> str:
        return "" if self._head is not None else "its head is unknown"

    def prepare(self, inputs: Sequence[Ids]) -> Callable[[], list[float]]:
        if self.unpadded is None:
            return partial(self._compute, inputs)
        return partial(self._compute_unpadded, self.unpadded, self.unpadded.pack(inputs))

    def _compute(self, inputs: Sequence[Ids]) -> list[float]:
        import torch

        with torch.inference_mode():
            if self.bert is None:
                features = tensors(inputs, self.tokens, self.device)
                if self.generates:
                    # otherwise logits of the whole vocabulary for each token, which are gigabytes
                    features["logits_to_keep"] = 1
                scores = self.model(features)["scores"]
            else:
                network = self.model[0].model
                scores = network.classifier(network.bert.pooler(self.bert.states(inputs)[:, None]))
            return _logits(scores, len(inputs))

    def _compute_unpadded(self, unpadded: UnpaddedNetwork, packing: Packing) -> list[float]:
        import torch

        assert self._head is not None
        with torch.inference_mode():
            states, moved = unpadded.states(packing)
            return _logits(self._head(states[moved.boundaries[:-1]]), len(packing.lengths))


def _logits(scores: "Tensor", count: int) -> list[float]:
    values: list[float] = scores.float().reshape(count).cpu().tolist()
    return values
