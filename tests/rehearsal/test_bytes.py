"""The memory that GPU recipes need, compared with sums over their models' files."""

from pathlib import Path
from typing import Any

import pytest

from models.engines import GIB, MIB
from models.estimate import estimate
from runtime.config.budgets import DeviceBudget
from runtime.config.device import SHARE
from runtime.residency.outlook import plan_all
from runtime.residency.policy import Need, Snapshot, replica_id
from tests.rehearsal.card import H100, H200, LLAMA, LLAMA_70B, QWEN_32B, ROOT, bert, chat_model, recipe
from tests.unit.registry.test_estimate import llama_tensors

SPEECH = 1600 * MIB + GIB + 480 * 50 * 1280 * (12 + 2 * 4 * 5) * 2
"""Bytes of large-v3-turbo in 16 bits: weights, engine overhead, and 480 s of windows with five beams of four layers."""


@pytest.mark.parametrize(
    ("name", "config", "weights"),
    [
        ("single-gpu-80gb/llama-8b", LLAMA, 16_060_522_496),
        ("h200/llama-8b", LLAMA, 16_060_522_496),
        ("h200/qwen-32b", QWEN_32B, 65_527_752_704),
        ("node-8x80gb/llama-8b", LLAMA, 16_060_522_496),
    ],
)
def test_a_plan_counts_what_the_files_hold(name: str, config: dict[str, Any], weights: int, tmp_path: Path) -> None:
    """The sizes are those of the published checkpoints, without Qwen's biases of q, k and v."""
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
    card = H200 if name.startswith("h200") else H100
    assert found.total < card * SHARE


@pytest.mark.parametrize(
    ("name", "config"),
    [("single-gpu-80gb/llama-8b", LLAMA), ("h200/llama-8b", LLAMA), ("h200/qwen-32b", QWEN_32B)],
)
def test_sums_in_comments_of_recipes_are_the_estimates(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    chat_model(tmp_path / "model", config)
    requested, text = recipe(name), (ROOT / "recipes" / f"{name}.yaml").read_text()
    found = estimate(requested, tmp_path / "model", "cuda")
    assert found.notes["kv_cache"].removeprefix("as the recipe says, ") in text
    weights = found.weights / GIB
    assert f"{weights:.1f} GiB weights" in text or f"{weights:.0f} GiB weights" in text
    if places := requested.memory.adapters.device:
        assert f"{places} places of {found.adapter_places / (places + 1) / 1e6:.0f} MB" in text
        rest = found.total - found.weights - found.kv_cache - found.adapter_places
        assert f"about {rest / GIB:.0f} GiB for activations and libraries" in text


def linear_layers(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (shape[0], shape[1]) for name, shape in llama_tensors(config).items() if len(shape) == 2}


def test_four_kinds_of_model_and_a_second_chat_model_fit_into_80_gb(tmp_path: Path) -> None:
    """The recipes for one GPU, and a second copy of the 8B model with a smaller KV cache."""
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
    assert sum(sums) + SPEECH < H100 * SHARE
    assert estimate(chat, tmp_path / "chat", "cuda").total + sum(sums[2:]) + SPEECH < H100 * SHARE


def test_a_model_on_four_gpus_needs_a_quarter_of_its_files_on_each(tmp_path: Path) -> None:
    """The size is that of the published checkpoint. The KV cache is split, too, by its eight heads."""
    held = chat_model(tmp_path / "model", LLAMA_70B)
    assert held == 141_107_412_992
    requested = recipe("node-8x80gb/llama-70b")
    assert (requested.parallel.tensor, requested.replicas.least) == (4, 2)
    found = estimate(requested, tmp_path / "model", "cuda")
    assert found.devices == 4
    assert found.weights == held // 4
    assert requested.memory.kv_cache is not None
    assert found.kv_cache == requested.memory.kv_cache // 4
    assert found.adapter_places == 0


def test_all_models_of_the_recipes_for_eight_gpus_fit_at_the_same_time(tmp_path: Path) -> None:
    chat_model(tmp_path / "large", LLAMA_70B)
    chat_model(tmp_path / "chat", LLAMA)
    bert(tmp_path / "embed", 24, 30522, 512)
    bert(tmp_path / "rerank", 24, 250002, 8194)
    needs = []
    for name, folder in (
        ("llama-70b", "large"),
        ("llama-8b", "chat"),
        ("bge-embed", "embed"),
        ("bge-rerank", "rerank"),
    ):
        requested = recipe(f"node-8x80gb/{name}")
        found = estimate(requested, tmp_path / folder, "cuda")
        ids = [replica_id(name, number) for number in range(1, requested.replicas.least + 1)]
        needs += [Need(id_, found.on_each, 1.0, 0.0, spread=found.devices, host=found.host) for id_ in ids]
    needs.append(Need("whisper", SPEECH, 1.0, 0.0))
    cards = tuple(DeviceBudget(f"cuda:{number}", int(H100 * SHARE)) for number in range(8))
    plans = plan_all(Snapshot(cards, (), len(needs), 0.0, host_budget=400 * GIB), needs)
    assert [(one.verdict, one.victims) for one in plans] == [("load", ())] * 7
    assert [one.devices for one in plans[:2]] == [
        ("cuda:0", "cuda:1", "cuda:2", "cuda:3"), ("cuda:4", "cuda:5", "cuda:6", "cuda:7"),
    ]  # fmt: skip
    assert plans[2].devices != plans[3].devices, "each replica of the 8B model has its own GPU"
    small = sum(one.needed for one in plans[4:])
    assert plans[0].needed + small < H100 * SHARE, "embeddings, reranker and speech would fit beside it on one GPU, too"
