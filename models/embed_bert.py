"""BERT on a CPU without padding: the tokens of a step are rows of one matrix, whatever the lengths of its inputs.

The library pads each input to the longest of its step and computes the padding, too. Here only attention knows of
inputs: it runs over those of equal length together. A cross-encoder reads nothing but its first token after the last
layer, so that layer computes queries and what comes after attention for those tokens only: with two layers that
spares two fifths of all multiplications. The weights stay the library's, some laid out anew; engines compare with the
library's own results when they load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from models.embed_model import Ids


class Linear(NamedTuple):
    weight: "Tensor"
    """inputs x outputs."""
    bias: "Tensor"


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    norm_attention: Any
    norm_output: Any


@dataclass(frozen=True, slots=True)
class Group:
    """`count` inputs of `length` tokens from row `start` on."""

    start: int
    count: int
    length: int


class Bert:
    """Runs a `transformers` BertModel in float32 on token ids.

    Args:
        model: the BertModel. Its linear layers keep working, on the same memory.
        first_only: only the first token's state is wanted after the last layer.
    """

    def __init__(self, model: Any, first_only: bool) -> None:
        self.heads: int = model.config.num_attention_heads
        self.width: int = model.config.hidden_size
        self.first_only = first_only
        self._embeddings = model.embeddings
        self._layers = [_layer(layer) for layer in model.encoder.layer]

    def states(self, inputs: "Sequence[Ids]") -> "Tensor":
        """The last layer's states, tokens x width, input by input; with `first_only` inputs x width.

        Neighbours of one length share one call of attention. Any number of threads may call.
        """
        import torch

        groups = _groups([len(given.ids) for given in inputs])
        x = self._embed(inputs)
        for layer in self._layers[:-1] if self.first_only else self._layers:
            x = _finish(layer, self._attend(x, layer, groups), x)
        if not self.first_only:
            return x
        layer, width = self._layers[-1], self.width
        firsts = x[torch.tensor([g.start + g.length * i for g in groups for i in range(g.count)])]
        query = torch.addmm(layer.qkv.bias[:width], firsts, layer.qkv.weight[:, :width])
        rest = torch.addmm(layer.qkv.bias[width:], x, layer.qkv.weight[:, width:])
        parts, done = [], 0
        for group in groups:
            q = query[done : done + group.count].view(group.count, 1, self.heads, -1)
            parts.append(self._attention(q, *self._split(rest, group, 2)))
            done += group.count
        return _finish(layer, torch.cat(parts), firsts)

    def features(self, inputs: "Sequence[Ids]") -> dict[str, Any]:
        """What sentence-transformers' Pooling takes for inputs without padding."""
        import torch

        ends = np.cumsum([0, *(len(given.ids) for given in inputs)])
        return {"token_embeddings": self.states(inputs)[None], "cu_seq_lens_q": torch.from_numpy(ends)}

    def _embed(self, inputs: "Sequence[Ids]") -> "Tensor":
        import torch

        ids = np.fromiter((token for given in inputs for token in given.ids), np.int64)
        places = np.concatenate([np.arange(len(given.ids)) for given in inputs])
        types = np.fromiter((t for given in inputs for t in given.types or [0] * len(given.ids)), np.int64, len(ids))
        e = self._embeddings
        x = e.word_embeddings(torch.from_numpy(ids))
        x += e.token_type_embeddings(torch.from_numpy(types))
        x += e.position_embeddings(torch.from_numpy(places))
        return _norm(e.LayerNorm, x)

    def _attend(self, x: "Tensor", layer: Layer, groups: Sequence[Group]) -> "Tensor":
        import torch

        qkv = torch.addmm(layer.qkv.bias, x, layer.qkv.weight)
        parts = [self._attention(*self._split(qkv, group, 3)) for group in groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _split(self, rows: "Tensor", group: Group, parts: int) -> "Sequence[Tensor]":
        """count x length x heads x size of each part."""
        some = rows[group.start : group.start + group.count * group.length]
        return some.view(group.count, group.length, parts, self.heads, -1).unbind(2)

    def _attention(self, q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
        attended = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return attended.transpose(1, 2).reshape(-1, self.width)


def of_embedder(model: Any, device: str) -> Bert | None:
    """For a SentenceTransformer of BERT and what comes after it; None when this is not one that we know."""
    from transformers import BertModel

    first, *rest = model
    known = all(type(module).__name__ in ("Pooling", "Normalize", "Dense") for module in rest)
    flat = bool(rest) and hasattr(rest[0], "_forward_flattened")  # a Pooling that takes rows without padding
    network: Any = getattr(first, "model", None)
    return Bert(network, False) if known and flat and _fits(network, BertModel, device) else None


def of_scorer(model: Any, device: str) -> Bert | None:
    """For a CrossEncoder of BERT; None when this is not one that we know."""
    from transformers import BertForSequenceClassification

    network: Any = getattr(model[0], "model", None)
    if len(model) > 1 or not _fits(network, BertForSequenceClassification, device):
        return None
    return Bert(network.bert, True)


def _fits(network: Any, kind: Any, device: str) -> bool:
    """Whether `Bert` computes what this network does."""
    import torch

    if device != "cpu" or type(network) is not kind:
        return False
    config = network.config
    return (
        config.hidden_act == "gelu"
        and not getattr(config, "is_decoder", False)
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and all(parameter.dtype == torch.float32 for parameter in network.parameters())
    )


def _finish(layer: Layer, attended: "Tensor", x: "Tensor") -> "Tensor":
    """What comes after attention in a layer. Writes over `x`."""
    import torch

    x = _norm(layer.norm_attention, x.add_(layer.out.bias).addmm_(attended, layer.out.weight))
    inner = torch.addmm(layer.up.bias, x, layer.up.weight)
    torch.ops.aten.gelu_(inner)
    return _norm(layer.norm_output, x.add_(layer.down.bias).addmm_(inner, layer.down.weight))


def _norm(norm: Any, x: "Tensor") -> "Tensor":
    import torch

    return torch.nn.functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _groups(lengths: Sequence[int]) -> list[Group]:
    groups, start = [], 0
    for length, same in groupby(lengths):
        groups.append(Group(start, len(list(same)), length))
        start += groups[-1].count * length
    return groups


def _layer(layer: Any) -> Layer:
    own = layer.attention.self
    return Layer(
        _linear(own.query, own.key, own.value),
        _linear(layer.attention.output.dense, by_input=True),
        _linear(layer.intermediate.dense),
        _linear(layer.output.dense, by_input=True),
        layer.attention.output.LayerNorm,
        layer.output.LayerNorm,
    )


def _linear(*parts: Any, by_input: bool = False) -> Linear:
    """One product for several linear layers, which become views of its weights.

    `by_input`: one input's weights lie side by side, not one output's. Where there are no more outputs than inputs that
    is as fast with many rows and up to 40 % faster with few (docs/performance.md).
    """
    import torch

    weight = torch.cat([part.weight.data for part in parts]).t()
    if by_input:
        weight = weight.contiguous()
    for part, some in zip(parts, weight.chunk(len(parts), 1), strict=True):
        part.weight.data = some.t()
    return Linear(weight, torch.cat([part.bias.data for part in parts]))
