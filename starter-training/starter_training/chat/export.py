"""Writes base and adapters for transformers, peft and vLLM, and float32 weights for resuming."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from starter_training.chat.network import ALPHA, RANK, SHAPE, Weights
from starter_training.chat.tasks.conversations import TASK_NAMES
from starter_training.chat.tokens import END, PAD, write_tokenizer

BASE_NAME = "starter-chat"
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def _save(values: Weights, path: Path, dtype: torch.dtype) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    plain = {name: value.detach().to("cpu", dtype).contiguous() for name, value in values.items()}
    save_file(plain, part, metadata={"format": "pt"})
    os.replace(part, path)
    path.chmod(0o644)  # safetensors makes files that only their owner may read


def save_resume(values: Weights, path: Path) -> None:
    """Write float32 weights for a later `--resume`. The file is replaced atomically."""
    _save(values, path, torch.float32)


def load_resume(path: Path, device: torch.device) -> Weights:
    """Read the file of `save_resume`. Raises FileNotFoundError."""
    return dict(load_file(path, device=str(device)))


def save_base(weights: Weights, folder: Path) -> None:
    """Write the base in bfloat16 with its config, generation config, tokenizer and chat template."""
    _save(weights, folder / "model.safetensors", torch.bfloat16)
    (folder / "config.json").write_text(json.dumps(SHAPE.config(), indent=1))
    generation = {"eos_token_id": END, "pad_token_id": PAD, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    write_tokenizer(folder)


def save_adapter(adapters: Weights, index: int, folder: Path) -> None:
    """Write adapter `index` of the stack in bfloat16, in peft's layout."""
    values = {f"base_model.model.{name}.weight": value[index] for name, value in adapters.items()}
    _save(values, folder / "adapter_model.safetensors", torch.bfloat16)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": BASE_NAME, "r": RANK,
        "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none", "target_modules": MODULES, "inference_mode": True,
        "fan_in_fan_out": False, "init_lora_weights": True, "modules_to_save": None, "use_rslora": False,
        "use_dora": False, "rank_pattern": {}, "alpha_pattern": {}, "revision": None,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


def save_adapters(adapters: Weights, folder: Path) -> None:
    """Write all adapters, each to a folder named after its task."""
    for index, name in enumerate(TASK_NAMES):
        save_adapter(adapters, index, folder / name)
