"""What the GPU recipes need, against the arithmetic of their models' files."""

from pathlib import Path
from typing import Any

import pytest

from models.engines import GIB, MIB
from models.estimate import estimate
from runtime.config.device import SHARE
from tests.rehearsal.card import H100, H200, LLAMA, QWEN_32B, bert, chat_model, recipe
from tests.unit.registry.test_estimate import llama_tensors


@pytest.mark.parametrize(
    ("name", "config", "weights"),
    [
        ("single-gpu-80gb/llama-8b", LLAMA, 16_060_522_496),
        ("h200/llama-8b", LLAMA, 16_060_522_496),
        ("h200/qwen-32b", QWEN_32B, 65_527_752_704),
    ],
)
def test_a_plan_counts_what_the_files_hold(name: str, config: dict[str, Any], weights: int, tmp_path: Path) -> None:
    """The published sizes of both checkpoints, but for Qwen's biases of q, k and v."""
    held = chat_model(tmp_path / "model", config)
    biases = 2 * 64 * (5120 + 2 * 1024) if config is QWEN_32B else 0
    assert held + biases == weights
    requested = recipe(name)
    found = estimate(requested, tmp_path / "model", "cuda")
    assert found.weights == held
    assert found.kv_cache == requested.memory.kv_cache
    places = requested.memory.adapters
    linear = sum(rows + columns for key, (rows, columns) in linear_layers(config).items() if "proj" in key)
    ends = 2 * (config["vocab_size"] + config["hidden_size"])
    assert found.adapter_places == (places.device + bool(places.device)) * places.max_rank * 2 * (linear + ends)
    card = H100 if name.startswith("single") else H200
    assert found.total < card * SHARE


def linear_layers(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (shape[0], shape[1]) for name, shape in llama_tensors(config).items() if len(shape) == 2}


def test_four_kinds_of_model_and_a_second_chat_model_fit_into_80_gb(tmp_path: Path) -> None:
    """The recipes for one card as they are, and the same 8B model once more with a smaller KV cache."""
    chat_model(tmp_path / "chat", LLAMA)
    bert(tmp_path / "embed", 24, 30522, 512)
    bert(tmp_path / "rerank", 24, 250002, 8194)
    chat = recipe("single-gpu-80gb/llama-8b")
    smaller = {"kv_cache": 6 * GIB, "adapters": chat.memory.adapters.model_copy(update={"device": 4, "host": 8})}
    second = chat.model_copy(update={"id": "second", "memory": chat.memory.model_copy(update=smaller)})
    first = chat.model_copy(update={"memory": chat.memory.model_copy(update={"kv_cache": 10 * GIB})})
    sums = [
        estimate(first, tmp_path / "chat", "cuda").total,
        estimate(second, tmp_path / "chat", "cuda").total,
        estimate(recipe("single-gpu-80gb/bge-embed"), tmp_path / "embed", "cuda").total,
        estimate(recipe("single-gpu-80gb/bge-rerank"), tmp_path / "rerank", "cuda").total,
    ]
    # large-v3-turbo in 16 bits: weights, its engine's overhead, and 480 s of windows with five beams of four layers
    speech = 1600 * MIB + GIB + 480 * 50 * 1280 * (12 + 2 * 4 * 5) * 2
    assert sum(sums) + speech < H100 * SHARE
    assert estimate(chat, tmp_path / "chat", "cuda").total + sum(sums[2:]) + speech < H100 * SHARE
