"""The Llama network as one plain function of its weights, with twenty LoRA adapters at once.

It is not taken from transformers for three reasons: packed rows need their own mask and positions, all adapters train
in one batch (each product is a batched matmul over the adapters), and the weights stay float32 while the arithmetic is
bfloat16. selfcheck.py shows that it equals transformers and peft.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from registry.files.context import native_bfloat16
from starter_training.chat.tokens import CONTEXT, END, PAD, VOCABULARY


@dataclass(frozen=True)
class Shape:
    """Sizes of the network: 3.1 million parameters, of which 82 thousand are the (tied) token embeddings."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    feed_forward: int = 640
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def linear(self) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of each linear layer by its name in the checkpoint, without '.weight'."""
        sizes: dict[str, tuple[int, int]] = {}
        for layer in range(self.layers):
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                sizes[f"model.layers.{layer}.self_attn.{name}"] = (self.hidden, self.hidden)
            for name in ("gate_proj", "up_proj"):
                sizes[f"model.layers.{layer}.mlp.{name}"] = (self.feed_forward, self.hidden)
            sizes[f"model.layers.{layer}.mlp.down_proj"] = (self.hidden, self.feed_forward)
        return sizes

    def config(self) -> dict[str, object]:
        """Return config.json for transformers, versions 4 and 5."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
            "hidden_size": self.hidden, "intermediate_size": self.feed_forward, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.heads, "head_dim": self.head_size,
            "max_position_embeddings": CONTEXT, "rope_theta": self.rope_theta, "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
            "attention_dropout": 0.0, "initializer_range": 0.03, "bos_token_id": None, "eos_token_id": END,
            "pad_token_id": PAD, "torch_dtype": "bfloat16", "use_cache": True,
        }  # fmt: skip


SHAPE = Shape()
RANK = 8
ALPHA = 16.0
Weights = dict[str, Tensor]
EMBED = "model.embed_tokens.weight"


def arithmetic(device: torch.device) -> torch.dtype:
    """Return the dtype of computation: bfloat16, or float32 on a CPU that emulates bfloat16, which is twice as fast."""
    return torch.bfloat16 if device.type == "cuda" or native_bfloat16() else torch.float32


def new_weights(shape: Shape, seed: int, device: torch.device) -> Weights:
    """Return initial float32 weights by checkpoint name. The output layers of each block start smaller."""
    maker = torch.Generator().manual_seed(seed)
    weights: Weights = {EMBED: torch.randn(VOCABULARY, shape.hidden, generator=maker) * 0.03}
    for name, (outputs, inputs) in shape.linear().items():
        last = name.endswith(("o_proj", "down_proj"))
        deviation = 0.03 / math.sqrt(2 * shape.layers) if last else 0.03
        weights[f"{name}.weight"] = torch.randn(outputs, inputs, generator=maker) * deviation
    for layer in range(shape.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{norm}.weight"] = torch.ones(shape.hidden)
    weights["model.norm.weight"] = torch.ones(shape.hidden)
    return {name: value.to(device) for name, value in weights.items()}


def new_adapters(shape: Shape, tasks: int, seed: int, device: torch.device) -> Weights:
    """Return new LoRA halves: NAME.lora_A [tasks, RANK, inputs] as in peft, NAME.lora_B [tasks, outputs, RANK] zero."""
    maker = torch.Generator().manual_seed(seed)
    halves: Weights = {}
    for name, (outputs, inputs) in shape.linear().items():
        drawn = torch.rand(1, RANK, inputs, generator=maker) * 2 - 1
        halves[f"{name}.lora_A"] = (drawn / math.sqrt(inputs)).expand(tasks, -1, -1).clone().to(device)
        halves[f"{name}.lora_B"] = torch.zeros(tasks, outputs, RANK, device=device)
    return halves


def rotary_table(shape: Shape, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return cosines and sines for all positions: [CONTEXT, 2, head size]."""
    steps = torch.arange(0, shape.head_size, 2, dtype=torch.float32, device=device) / shape.head_size
    angles = torch.outer(torch.arange(CONTEXT, dtype=torch.float32, device=device), shape.rope_theta**-steps)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype)


def packed_mask(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive attention mask [rows, 1, length, length]: causal, and within one conversation."""
    conversation = (positions == 0).cumsum(1)
    length = positions.shape[1]
    seen = (conversation[:, :, None] == conversation[:, None, :]).tril()
    return torch.zeros(len(positions), length, length, dtype=dtype, device=positions.device).masked_fill_(
        ~seen, -math.inf
    )[:, None]


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + turned * sine


def forward(
    weights: Weights, ids: Tensor, mask: Tensor, rotary: Tensor, shape: Shape, adapters: Weights | None = None
) -> Tensor:
    """Return logits [rows, length, vocabulary] in the dtype of the weights.

    Args:
        ids: [rows, length].
        mask: from `packed_mask`.
        rotary: [rows, length, 2, head size], looked up by position.
        adapters: for T tasks; the rows are then T equal groups in order, and group t uses adapter t.
    """
    rows, length = ids.shape
    cosine, sine = rotary[:, None, :, 0], rotary[:, None, :, 1]

    def linear(name: str, x: Tensor) -> Tensor:
        y = F.linear(x, weights[f"{name}.weight"])
        if adapters is None:
            return y
        a, b = adapters[f"{name}.lora_A"], adapters[f"{name}.lora_B"]
        grouped = x.reshape(len(a), -1, x.shape[-1])
        low = torch.bmm(grouped, a.mT)
        return torch.baddbmm(y.view(len(a), -1, y.shape[-1]), low, b.mT, alpha=ALPHA / RANK).view_as(y)

    def heads(y: Tensor) -> Tensor:
        return y.view(rows, length, shape.heads, shape.head_size).transpose(1, 2)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (shape.hidden,), weights[f"{name}.weight"], shape.norm_epsilon)

    x = F.embedding(ids, weights[EMBED])
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (heads(linear(f"{at}.self_attn.{name}_proj", h)) for name in "qkv")
        mixed = F.scaled_dot_product_attention(_rotate(q, cosine, sine), _rotate(k, cosine, sine), v, attn_mask=mask)
        x = x + linear(f"{at}.self_attn.o_proj", mixed.transpose(1, 2).reshape(rows, length, shape.hidden))
        h = norm(x, f"{at}.post_attention_layernorm")
        gated = F.silu(linear(f"{at}.mlp.gate_proj", h)) * linear(f"{at}.mlp.up_proj", h)
        x = x + linear(f"{at}.mlp.down_proj", gated)
    return F.linear(norm(x, "model.norm"), weights[EMBED])
