"""A start on an H100 as far as it goes without one: with a driver that is made up, on vLLM's CPU build.

The CUDA build's own files: scripts/install-cuda-rehearsal.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat import cuda
from models.estimate import GIB, MIB, estimate
from registry.recipes.definition import Recipe
from registry.recipes.loading import load_recipes
from runtime.server.device import SHARE
from tests.unit.registry.test_estimate import LLAMA_8B, llama_tensors, write_sparse

ROOT = Path(__file__).parents[2]
H100, H200 = 85_520_809_984, 150_754_820_096
"""Bytes of the cards, as NVML tells them."""
LLAMA = {**LLAMA_8B, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
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
    """A model's files with true headers and no values; the bytes of its weights."""
    folder.mkdir()
    shapes = llama_tensors(config)
    write_sparse(folder / "model.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps(config))
    header = 8 + int.from_bytes((folder / "model.safetensors").open("rb").read(8), "little")
    return (folder / "model.safetensors").stat().st_size - header


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver's two libraries."""
    folder = tmp_path_factory.mktemp("driver")
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        source = str(Path(__file__).with_name("driver.c"))
        command = [os.environ.get("CC") or "cc", *flags, f"-Wl,-soname,{name}", "-o", str(folder / name), source]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "config"),
    [("single-gpu-80gb/llama-8b", LLAMA), ("h200/llama-8b", LLAMA), ("h200/qwen-32b", QWEN_32B)],
)
def test_a_gpu_recipe_is_configured_and_cuda_is_left_alone(
    driver: Path, tmp_path: Path, name: str, config: dict[str, Any]
) -> None:
    """All that comes before EngineCore's fork: after it, a process that had touched CUDA could not be forked."""
    chat_model(tmp_path / "model", config)
    log = tmp_path / "calls"
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "REHEARSAL_LOG": str(log), "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "tests.rehearsal.probe", f"recipes/{name}.yaml", str(tmp_path / "model")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    asked = recipe(name)
    places = asked.memory.adapters
    assert found == {
        "gpu": "NVIDIA H100 80GB HBM3",
        "driver": "580.65.06",
        "second_runner": True,
        "share": float(cuda.SHARE),
        "kv_cache": asked.memory.kv_cache,
        "flashinfer_sampler": False,
        "autotune": False,
        "sizes": cuda.capture_sizes(asked.batching.max_requests),
        "max_model_len": asked.context_length,
        "typical": True,
        "executor": "uni",
        "worker": "vllm.v1.worker.gpu_worker.Worker",
        "extension": "models.chat.vllm.stage.StagedAdapters" if places.device else "",
        "asked_to_sleep": True,
        "lora": [places.device, places.max_rank] if places.device else None,
        "inspected": [],
        "runner_loads_adapters_as_the_first_does": True,
        "sampler_takes_processors": True,
        "core_is_ours": "models.chat.vllm.core",
        "manager_is_ours": "models.chat.vllm.manager",
    }
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    assert "cuInit" not in calls
    assert calls.count("nvmlInit") == calls.count("nvmlShutdown") > 0, "a fork must not inherit it"


@pytest.mark.real
def test_a_second_model_starts_on_a_card_that_is_nearly_full() -> None:
    from vllm.v1.worker.utils import request_memory

    card = SimpleNamespace(total_memory=H100, free_memory=H100 // 50, device_="cuda:0")
    with pytest.raises(ValueError, match="Free memory on device"):
        request_memory(card, SimpleNamespace(gpu_memory_utilization=0.92))
    request_memory(card, SimpleNamespace(gpu_memory_utilization=float(cuda.SHARE)))


# --- bytes ---------------------------------------------------------------------------------------------------------
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
    asked = recipe(name)
    found = estimate(asked, tmp_path / "model", "cuda")
    assert found.weights == held
    assert found.kv_cache == asked.memory.kv_cache
    places = asked.memory.adapters
    linear = sum(rows + columns for key, (rows, columns) in linear_layers(config).items() if "proj" in key)
    ends = 2 * (config["vocab_size"] + config["hidden_size"])
    assert found.adapter_places == places.device * places.max_rank * 2 * (linear + ends)
    card = H100 if name.startswith("single") else H200
    assert found.total < card * SHARE


def linear_layers(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (shape[0], shape[1]) for name, shape in llama_tensors(config).items() if len(shape) == 2}


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
