"""BERT on a CPU without padding: all tokens of a step are rows of one matrix.

The library pads each input to the longest of its step, and computes the padding, too. Here only attention distinguishes
inputs, and it runs over those of equal length together. After the last layer a cross-encoder reads only the first token
of each input, so that layer computes queries and everything after attention for those tokens only; with two layers that
saves two fifths of all multiplications. The weights are the library's, some in another layout; engines compare the
results with the library's when they load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from models.text.cpu import kernels

if TYPE_CHECKING:
    from torch import Tensor

    from models.text.tokens import Ids


class LinearRows(Protocol):
    """A linear layer for rows of a matrix."""

    def rows(self, x: "Tensor") -> "Tensor":
        """Return x W + bias, rows x outputs."""

    def gelu(self, x: "Tensor") -> "Tensor":
        """Return the exact GELU of x W + bias."""

    def add(self, x: "Tensor", to: "Tensor") -> "Tensor":
        """Add x W + bias to `to` in place, and return it."""


class Linear(NamedTuple):
    """A linear layer in float32."""

    weight: "Tensor"
    """inputs x outputs."""
    bias: "Tensor"

    def rows(self, x: "Tensor") -> "Tensor":
        import torch

        return torch.addmm(self.bias, x, self.weight)

    def gelu(self, x: "Tensor") -> "Tensor":
        import torch

        inner = self.rows(x)
        torch.ops.aten.gelu_(inner)
        return inner

    def add(self, x: "Tensor", to: "Tensor") -> "Tensor":
        return to.add_(self.bias).addmm_(x, self.weight)


@dataclass(frozen=True, slots=True)
class BertLayer:
    query: LinearRows | None
    """None if `qkv` includes the queries."""
    qkv: LinearRows
    """Queries, keys and values of all rows, or only keys and values if there is a `query`."""
    out: LinearRows
    up: LinearRows
    down: LinearRows
    norm_attention: Any
    norm_output: Any


class Bert:
    """Runs a `transformers` BertModel in float32 on token ids.

    Args:
        model: the BertModel. Its linear layers keep working, on the same memory.
        first_only: only the first token's state is needed after the last layer.

    `layers` may be replaced by other implementations (`models.text.cpu.linear`).
    """

    def __init__(self, model: Any, first_only: bool) -> None:
        self.heads: int = model.config.num_attention_heads
        self.width: int = model.config.hidden_size
        self.first_only = first_only
        self._embeddings = model.embeddings
        last = len(model.encoder.layer) - 1
        self.layers = [_layer(layer, first_only and n == last) for n, layer in enumerate(model.encoder.layer)]
        self._encoder = model.encoder
        self._together = kernels.attention_for(self.heads, self.width // self.heads, self.positions)
        """Attention of all inputs in one call; None to use PyTorch's for each length."""

    def states(self, inputs: "Sequence[Ids]") -> "Tensor":
        """Return last states, tokens x width, or inputs x width with `first_only`. Thread-safe."""
        import torch

        lengths = [len(given.ids) for given in inputs]
        x = self._embed(inputs)
        for layer in self.layers[:-1] if self.first_only else self.layers:
            query, keys, values = layer.qkv.rows(x).chunk(3, 1)
            x = _finish(layer, self._attend(query, keys, values, lengths), x)
        if not self.first_only:
            return x
        layer = self.layers[-1]
        assert layer.query is not None
        firsts = x[torch.tensor([0, *lengths[:-1]]).cumsum(0)]
        keys, values = layer.qkv.rows(x).chunk(2, 1)
        return _finish(layer, self._attend(layer.query.rows(firsts), keys, values, lengths), firsts)

    @property
    def vocabulary(self) -> int:
        return int(self._embeddings.word_embeddings.num_embeddings)

    @property
    def positions(self) -> int:
        return int(self._embeddings.position_embeddings.num_embeddings)

    def release_weights(self) -> None:
        """Free the library's linear weights, after which its network cannot compute any more."""
        for layer in self._encoder.layer:
            own = layer.attention.self
            for linear in (own.query, own.key, own.value, layer.attention.output, layer.intermediate, layer.output):
                weight = getattr(linear, "dense", linear).weight
                weight.data = weight.data.new_empty(0)

    def features(self, inputs: "Sequence[Ids]") -> dict[str, Any]:
        """Return states and where inputs begin and end, under the names of sentence-transformers' Pooling."""
        import torch

        ends = np.cumsum([0, *(1 if self.first_only else len(given.ids) for given in inputs)])
        return {"token_embeddings": self.states(inputs)[None], "cu_seq_lens_q": torch.from_numpy(ends)}

    def _embed(self, inputs: "Sequence[Ids]") -> "Tensor":
        import torch

        ids = np.fromiter((token for given in inputs for token in given.ids), np.int64)
        positions = np.concatenate([np.arange(len(given.ids)) for given in inputs])
        types = np.fromiter((t for given in inputs for t in given.types or [0] * len(given.ids)), np.int64, len(ids))
        e = self._embeddings
        x = e.word_embeddings(torch.from_numpy(ids))
        x += e.token_type_embeddings(torch.from_numpy(types))
        x += e.position_embeddings(torch.from_numpy(positions))
        return _norm(e.LayerNorm, x)

    def _attend(self, query: "Tensor", keys: "Tensor", values: "Tensor", lengths: Sequence[int]) -> "Tensor":
        """Compute attention. query: a row for each token, or one for each input."""
        import torch

        if self._together is not None:
            return self._together(query, keys, values, lengths)
        parts, start, done = [], 0, 0
        single = len(query) != len(keys)
        for length, alike in groupby(lengths):
            count = len(list(alike))
            rows = slice(start, start + count * length)
            query_rows = slice(done, done + count) if single else rows
            q, k, v = (
                some.view(count, -1, self.heads, self.width // self.heads).transpose(1, 2)
                for some in (query[query_rows], keys[rows], values[rows])
            )
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            parts.append(attended.transpose(1, 2).reshape(-1, self.width))
            start, done = rows.stop, done + count
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def of_embedder(model: Any, device: str) -> Bert | None:
    """Return a `Bert` for a SentenceTransformer, or None for other networks or modules."""
    from transformers import BertModel

    network: Any = getattr(model[0], "model", None)
    return Bert(network, False) if pools_rows(model) and _fits(network, BertModel, device) else None


def pools_rows(model: Any) -> bool:
    """Return whether a SentenceTransformer's other modules take unpadded rows."""
    rest = list(model)[1:]
    known = all(type(module).__name__ in ("Pooling", "Normalize", "Dense") for module in rest)
    return known and bool(rest) and hasattr(rest[0], "_forward_flattened")  # a Pooling that supports them


def of_scorer(model: Any, device: str) -> Bert | None:
    """Return a `Bert` for a CrossEncoder, or None for other networks."""
    from transformers import BertForSequenceClassification

    network: Any = getattr(model[0], "model", None)
    if len(model) > 1 or not _fits(network, BertForSequenceClassification, device):
        return None
    return Bert(network.bert, True)


def _fits(network: Any, kind: Any, device: str) -> bool:
    """Return whether `Bert` computes the same as this network."""
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


def _finish(layer: BertLayer, attended: "Tensor", x: "Tensor") -> "Tensor":
    """Compute the part of a layer after attention. Overwrites `x`."""
    x = _norm(layer.norm_attention, layer.out.add(attended, x))
    return _norm(layer.norm_output, layer.down.add(layer.up.gelu(x), x))


def _norm(norm: Any, x: "Tensor") -> "Tensor":
    import torch

    return torch.nn.functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _layer(layer: Any, first_only: bool) -> BertLayer:
    own = layer.attention.self
    qkv = _linear(own.query, own.key, own.value)
    width = own.query.out_features
    return BertLayer(
        Linear(qkv.weight[:, :width], qkv.bias[:width]) if first_only else None,
        Linear(qkv.weight[:, width:], qkv.bias[width:]) if first_only else qkv,
        _linear(layer.attention.output.dense, by_input=True),
        _linear(layer.intermediate.dense),
        _linear(layer.output.dense, by_input=True),
        layer.attention.output.LayerNorm,
        layer.output.LayerNorm,
    )


def _linear(*parts: Any, by_input: bool = False) -> Linear:
    """Return one product for several linear layers, which become views of its weights.

    `by_input`: store one input's weights contiguously instead of one output's. With no more outputs than inputs that is
    as fast for many rows and up to 40 % faster for few (docs/design/notebook.md).
    """
    import torch

    weight = torch.cat([part.weight.data for part in parts]).t()
    if by_input:
        weight = weight.contiguous()
    for part, some in zip(parts, weight.chunk(len(parts), 1), strict=True):
        part.weight.data = some.t()
    return Linear(weight, torch.cat([part.bias.data for part in parts]))
