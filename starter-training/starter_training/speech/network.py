"""The Whisper network, with its own forward pass for training.

The weights are those of transformers' WhisperForConditionalGeneration. The forward pass allows short windows at any
encoder position (for cheap early training), flash attention throughout, and a loss on two attention heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import WhisperConfig, WhisperForConditionalGeneration

from starter_training.speech import tokens
from starter_training.speech.mixing import Batch
from starter_training.speech.plans import IGNORE
from starter_training.speech.synthesis.corpus import PHONEME_CLASSES

WIDTH, ENCODER_LAYERS, DECODER_LAYERS, HEADS = 192, 4, 3, 4
ALIGNMENT_HEADS = [[1, 0], [1, 1]]
"""Decoder (layer, head) pairs that learn to attend to the word being spoken."""


def make() -> WhisperForConditionalGeneration:
    """Return a new model with its generation settings."""
    ids = tokens.ids()
    config = WhisperConfig(
        vocab_size=ids.size,
        num_mel_bins=80,
        encoder_layers=ENCODER_LAYERS,
        encoder_attention_heads=HEADS,
        decoder_layers=DECODER_LAYERS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        d_model=WIDTH,
        max_source_positions=1500,
        max_target_positions=448,
        pad_token_id=ids.end,
        bos_token_id=ids.end,
        eos_token_id=ids.end,
        decoder_start_token_id=ids.start,
        suppress_tokens=[],
        begin_suppress_tokens=[ids.space],
    )
    model = WhisperForConditionalGeneration(config)
    generation = model.generation_config
    generation.is_multilingual = False
    generation.no_timestamps_token_id = ids.no_timestamps
    generation.alignment_heads = ALIGNMENT_HEADS
    generation.suppress_tokens = []
    # Only the bare space: an empty text must stay possible, it is the right answer to silence.
    generation.begin_suppress_tokens = [ids.space]
    generation.max_length = 448
    generation.decoder_start_token_id = ids.start
    generation.prev_sot_token_id = ids.previous
    generation.max_initial_timestamp_index = 50
    with torch.no_grad():
        # Timestamps begin as the encoder's own sinusoids: time is then something that can be copied.
        embedding = model.model.decoder.embed_tokens.weight
        position = model.model.encoder.embed_positions.weight
        embedding[ids.time_zero : ids.time_zero + 1500] = position[:1500] * 0.03
        embedding[ids.time_zero + 1500] = position[1499] * 0.03
    return model


class Trainee(nn.Module):
    """The model with the auxiliary phoneme head."""

    def __init__(self) -> None:
        super().__init__()
        self.whisper = make()
        self.phonemes = nn.Linear(WIDTH, PHONEME_CLASSES)

    def encode(self, features: Tensor, offset: Tensor) -> Tensor:
        """Return encoder states [B, frames / 2, WIDTH] of features [B, 80, frames] that begin at ``offset`` [B]."""
        encoder = self.whisper.model.encoder
        hidden = functional.gelu(encoder.conv1(features))
        hidden = functional.gelu(encoder.conv2(hidden)).transpose(1, 2)
        places = offset[:, None] + torch.arange(hidden.shape[1], device=hidden.device)
        hidden = hidden + encoder.embed_positions.weight[places]
        for layer in encoder.layers:
            normed = layer.self_attn_layer_norm(hidden)
            hidden = hidden + _attend(layer.self_attn, normed, normed)
            hidden = hidden + layer.fc2(functional.gelu(layer.fc1(layer.final_layer_norm(hidden))))
        result: Tensor = encoder.layer_norm(hidden)
        return result

    def decode(self, ids: Tensor, states: Tensor, *, align: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Return logits [B, L, V] and, if ``align``, the log attention [B, L, frames / 2] of each alignment head."""
        decoder = self.whisper.model.decoder
        hidden = decoder.embed_tokens(ids) + decoder.embed_positions.weight[: ids.shape[1]]
        hidden = functional.dropout(hidden, 0.05, self.training)
        looks: list[Tensor] = []
        for number, layer in enumerate(decoder.layers):
            normed = layer.self_attn_layer_norm(hidden)
            hidden = hidden + _attend(layer.self_attn, normed, normed, causal=True)
            normed = layer.encoder_attn_layer_norm(hidden)
            if align:
                heads = [head for where, head in ALIGNMENT_HEADS if where == number]
                looks += _looks(layer.encoder_attn, normed, states, heads)
            hidden = hidden + _attend(layer.encoder_attn, normed, states)
            hidden = hidden + layer.fc2(functional.gelu(layer.fc1(layer.final_layer_norm(hidden))))
        return decoder.layer_norm(hidden) @ decoder.embed_tokens.weight.T.to(hidden.dtype), looks

    def loss(self, batch: Batch, phoneme_weight: float, guide_weight: float) -> tuple[Tensor, Tensor]:
        """Return the training loss and its parts [words, times, phonemes, guide] (detached)."""
        states = self.encode(batch.features, batch.offset)
        logits, looks = self.decode(batch.ids, states, align=True)
        zero = tokens.ids().time_zero
        keep = batch.labels != IGNORE
        target = batch.labels.clamp_min(0)
        log = logits.float().log_softmax(-1)
        plain = -log.gather(2, target[..., None])[..., 0]
        # A neighbouring timestamp is nearly as good, so the target is spread over three.
        timed = (target > zero) & (target < zero + 1500)
        near = torch.stack([target - timed.long(), target + timed.long()], -1)
        soft = -log.gather(2, near).mean(-1)
        each = torch.where(timed, 0.6 * plain + 0.4 * soft, plain) * keep
        token_loss = each.sum() / keep.sum()
        phoneme = functional.cross_entropy(self.phonemes(states).float().flatten(0, 1), batch.phonemes.flatten())
        guide = _guide(looks, batch)
        words = (each * ~timed).sum() / (keep & ~timed).sum().clamp_min(1)
        times = (each * timed).sum() / (keep & timed).sum().clamp_min(1)
        total = token_loss + phoneme_weight * phoneme + guide_weight * guide
        return total, torch.stack([words, times, phoneme, guide]).detach()


def _heads(hidden: Tensor) -> Tensor:
    return hidden.view(hidden.shape[0], hidden.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)


def _attend(attention: Any, hidden: Tensor, source: Tensor, causal: bool = False) -> Tensor:
    query, key, value = attention.q_proj(hidden), attention.k_proj(source), attention.v_proj(source)
    mixed = functional.scaled_dot_product_attention(_heads(query), _heads(key), _heads(value), is_causal=causal)
    result: Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(hidden.shape))
    return result


def _looks(attention: Any, hidden: Tensor, source: Tensor, heads: list[int]) -> list[Tensor]:
    if not heads:
        return []
    query, key = _heads(attention.q_proj(hidden)), _heads(attention.k_proj(source))
    scale = (WIDTH // HEADS) ** -0.5
    return [((query[:, head] @ key[:, head].transpose(1, 2)) * scale).float().log_softmax(-1) for head in heads]


def _guide(looks: list[Tensor], batch: Batch) -> Tensor:
    """Return minus the log of the attention on the word of each label, as a mean over labels with a span."""
    time = torch.arange(looks[0].shape[2], device=looks[0].device)
    first = batch.first.clamp(max=looks[0].shape[2] - 2)
    inside = (time >= first[..., None]) & (time < batch.last[..., None].clamp_min(2))
    known = batch.first >= 0
    total = torch.zeros((), device=looks[0].device)
    for look in looks:
        mass = (look.exp() * inside).sum(-1)
        total = total - (torch.log(mass + 1e-4) * known).sum() / known.sum().clamp_min(1)
    return total / len(looks)
