"""The GPUs of the recipes, and sparse model files of real sizes that take no disk space."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from registry.recipes.definition import Recipe
from registry.recipes.loading import load_recipes
from tests.unit.registry.test_estimate import LLAMA_8B, llama_tensors, write_sparse

ROOT = Path(__file__).parents[2]
H100, H200 = 85_520_809_984, 150_754_820_096
"""Bytes of the GPUs, as NVML reports them."""
LLAMA = {**LLAMA_8B, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
LLAMA_70B = {
    **LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
QWEN_32B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_size": 5120,
    "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
    "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip
BERT_LARGE = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 30522, "max_position_embeddings": 512,
}  # fmt: skip


def recipe(name: str) -> Recipe:
    (found,) = load_recipes([ROOT / "recipes" / f"{name}.yaml"])
    return found


def chat_model(folder: Path, config: dict[str, Any]) -> int:
    """Write a model with headers but no values, and the starter's tokenizer. Return the bytes of its weights."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "models" / "starter" / "pack" / "starter-chat" / name, folder)
    shapes = llama_tensors(config)
    write_sparse(folder / "model.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps(config))
    header = 8 + int.from_bytes((folder / "model.safetensors").open("rb").read(8), "little")
    return (folder / "model.safetensors").stat().st_size - header


def bert(folder: Path, layers: int, vocabulary: int, positions: int) -> None:
    folder.mkdir()
    config = {**BERT_LARGE, "num_hidden_layers": layers, "vocab_size": vocabulary, "max_position_embeddings": positions}
    shapes = {"embeddings.word_embeddings.weight": [vocabulary, 1024]}
    for layer in range(layers):
        sides = {"query": [1024, 1024], "key": [1024, 1024], "value": [1024, 1024], "output": [1024, 1024]}
        sides |= {"intermediate": [4096, 1024], "last": [1024, 4096]}
        shapes |= {f"encoder.layer.{layer}.{name}.weight": side for name, side in sides.items()}
    write_sparse(folder / "model.safetensors", shapes, "F16")
    (folder / "config.json").write_text(json.dumps(config))


def variables(driver: Path, work: Path, card: int = H100, cards: int = 1) -> dict[str, str]:
    """Return the environment for a process to find the fake GPUs. Its calls are logged in `work` / calls."""
    given = {**os.environ, "LD_LIBRARY_PATH": str(driver), "REHEARSAL_LOG": str(work / "calls")}
    given |= {"REHEARSAL_CARDS": str(cards)}
    given |= {"REHEARSAL_BYTES": str(card), "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(work / "cache")}
    given.pop("CUDA_VISIBLE_DEVICES", None)
    return given


def calls(work: Path) -> list[tuple[str, int]]:
    """Return the calls of the driver, each with its process."""
    lines = [line.rpartition(" ") for line in (work / "calls").read_text().splitlines()]
    return [(call, int(process)) for call, _, process in lines]
