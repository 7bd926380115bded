"""Initial attention heads of the student that find the same word in the other text.

The embedding model's heads never saw two texts at once, and comparing words across texts is what a small cross-encoder
learns last. Therefore some heads of the first layer start with this ability: queries and keys are the same projection
of the input, so a word attends to the same word; one dimension directs the attention to the other text; and a word
without a match attends to [SEP]. The output of such a head is how much it attended to [SEP]. Training continues from
there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

HEADS = 4
MATCH, SEGMENT = 14.0, 3.0
"""Logits of a match (approximate), and of the preference for the other text."""

SINK = 9.0
"""Logit of [SEP], between that of a match and those of other words."""

WRITTEN = 1.5
"""Distance between match and no match in the residual stream."""


@torch.no_grad()
def add_matching_heads(student: BertForSequenceClassification, sep: int, seed: int, heads: int = HEADS) -> None:
    """Rewrite the first `heads` heads of the first layer and the segment embeddings of `student` in place.

    `sep`: number of [SEP] in its vocabulary.
    """
    embeddings, attention = student.bert.embeddings, student.bert.encoder.layer[0].attention
    size, width = student.config.hidden_size, student.config.hidden_size // student.config.num_attention_heads
    generator = torch.Generator().manual_seed(seed)
    words = embeddings.word_embeddings.weight
    count = 4096
    tokens = torch.randint(5, len(words), (count,), generator=generator)
    places = torch.randint(1, 96, (count,), generator=generator)
    segment, written = _quiet_directions(embeddings, tokens, places)
    # Both texts start as the segment that the embedding model knows, shifted apart in a direction that words hardly
    # use.
    kinds = embeddings.token_type_embeddings.weight
    step = 0.1 * float((words[tokens] + embeddings.position_embeddings.weight[places]).norm(dim=1).mean())
    kinds.copy_(kinds[0] + torch.stack([segment, -segment]) * step)
    states = _states(embeddings, tokens, places, 0)
    ends = _states(embeddings, torch.full((90,), sep), torch.arange(1, 91), 0)
    centre = states.mean(0)
    special = ends.mean(0) - centre
    special = special - segment * (special @ segment)
    special = special / special.norm()
    special = special / float(((ends - centre) @ special).mean())  # 1 for [SEP], about 0 for words
    apart = float(((states - _states(embeddings, tokens, places, 1)) @ segment).mean()) / 2
    middle = segment @ (states.mean(0) + _states(embeddings, tokens, places, 1).mean(0)) / 2
    basis = _words_before_places(embeddings, tokens, places, segment)
    for head in range(heads):
        rows = slice(head * width, (head + 1) * width)
        mix = torch.linalg.qr(torch.randn(len(basis), width - 2, generator=generator)).Q.T
        project = mix @ basis
        scale = (MATCH * width**0.5 / ((states - centre) @ project.T).square().sum(1).mean()) ** 0.5
        turn = (SEGMENT * width**0.5) ** 0.5 / apart
        sink = SINK * width**0.5
        own = attention.self
        for linear, sign, constant, factor in ((own.query, 1.0, sink, 0.0), (own.key, -1.0, 0.0, 1.0)):
            linear.weight[rows] = torch.cat([
                project * scale, sign * turn * segment[None], factor * special[None],
            ])  # fmt: skip
            linear.bias[rows] = torch.cat([
                -(project @ centre) * scale,
                (-sign * turn * middle).reshape(1),
                (constant - factor * special @ centre).reshape(1),
            ])  # fmt: skip
        own.value.weight[rows.start] = special
        own.value.bias[rows.start] = -(special @ centre)
        out = attention.output.dense.weight
        out[:, rows] *= 0.3
        out[:, rows.start] = -written * WRITTEN * float(states.std()) * size**0.5 / heads


def _states(embeddings: torch.nn.Module, tokens: Tensor, places: Tensor, kind: int) -> Tensor:
    """Return the input of the first layer [tokens, size]."""
    parts = (
        embeddings.word_embeddings.weight[tokens],  # type: ignore[union-attr,index]
        embeddings.position_embeddings.weight[places],  # type: ignore[union-attr,index]
        embeddings.token_type_embeddings.weight[kind],  # type: ignore[union-attr,index]
    )
    seen: Tensor = embeddings.LayerNorm(sum(parts))  # type: ignore[operator]
    return seen


def _quiet_directions(embeddings: torch.nn.Module, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return two unit directions in which words and positions differ least."""
    states = _states(embeddings, tokens, places, 0)
    vectors = torch.linalg.eigh((states - states.mean(0)).T @ (states - states.mean(0))).eigenvectors
    # The very last one is the constraint of the layer norm itself.
    return vectors.select(1, 2), vectors.select(1, 3)


def _words_before_places(embeddings: torch.nn.Module, tokens: Tensor, places: Tensor, segment: Tensor) -> Tensor:
    """Return an orthonormal basis [n, size] of directions that distinguish words but not positions."""
    fixed = _states(embeddings, tokens[:1].expand(90), torch.arange(1, 91), 0)
    moved = fixed - fixed.mean(0)
    place = torch.linalg.svd(moved, full_matrices=False).Vh[:12]
    away = torch.cat([place, segment[None]])
    away = torch.linalg.qr(away.T).Q.T
    states = _states(embeddings, tokens, places, 0)
    states = states - states.mean(0)
    states = states - (states @ away.T) @ away
    basis: Tensor = torch.linalg.svd(states, full_matrices=False).Vh[:256]
    return basis
