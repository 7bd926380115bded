"""Makes a small Llama base and adapters for it, valid or invalid in any way that a test needs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, KEYS, INNER, LAYERS, VOCABULARY = 128, 64, 256, 2, 256
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KEYS, HIDDEN), "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}  # fmt: skip
"""Module -> (out, in)."""

Tensors = dict[str, torch.Tensor]


def write_base(folder: Path, seed: int = 0) -> Path:
    """Write a Llama with random bfloat16 weights as transformers would, without its import, which takes seconds."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return (0.02 * torch.randn(shape, generator=generator)).to(torch.bfloat16)

    tables = {"model.embed_tokens": random(VOCABULARY, HIDDEN), "lm_head": random(VOCABULARY, HIDDEN)}
    norms = {"model.norm": torch.ones(HIDDEN, dtype=torch.bfloat16)}
    for layer in range(LAYERS):
        for module, shape in SHAPES.items():
            tables[f"model.layers.{layer}.{module}"] = random(*shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            norms[f"model.layers.{layer}.{norm}"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"{name}.weight": tensor for name, tensor in (tables | norms).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    reported = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(reported))
    return folder


def name(layer: int, module: str, half: str) -> str:
    return f"base_model.model.model.layers.{layer}.{module}.lora_{half}.weight"


def tensors(rank: int = 8, layers: int = LAYERS, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """Return tensors of all linear layers, with peft's names."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for layer in range(layers):
        for module, (out, width) in SHAPES.items():
            a = torch.randn(rank, width, generator=generator) * 0.1
            b = torch.randn(out, rank, generator=generator) * 0.1
            made[name(layer, module, "A")] = a.to(torch.bfloat16).to(dtype)
            made[name(layer, module, "B")] = b.to(torch.bfloat16).to(dtype)
    return made


def config(rank: int = 8, **settings: Any) -> dict[str, Any]:
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": [module.split(".")[1] for module in SHAPES], "base_model_name_or_path": "x/y",
        "lora_dropout": 0.05, "inference_mode": True, "init_lora_weights": True, **settings,
    }  # fmt: skip


def write_adapter(
    folder: Path,
    *,
    rank: int = 8,
    weights: Tensors | None = None,
    change: Callable[[Tensors], None] | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write a folder in peft's layout. `change` edits the tensors, `settings` overrides the config."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensors(rank, seed=seed) if weights is None else weights
    if change is not None:
        change(weights)
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**config(rank), **(settings or {})}))
    return folder
