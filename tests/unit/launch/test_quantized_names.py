"""Quantized files are compared by their layers and head: each method names its tensors by itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch.checks.network import network_faults

LAYERS = 3
SUFFIXES = {
    "gptq": ("qweight", "qzeros", "scales", "g_idx"), "awq": ("qweight", "qzeros", "scales"),
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_shape"), "fp8": ("weight", "weight_scale"),
}  # fmt: skip


def faults(folder: Path, names: list[str], architecture: str, kind: str, method: str = "gptq", **more: Any) -> str:
    config = {
        "architectures": [architecture], "model_type": kind, "num_hidden_layers": LAYERS, "hidden_size": 64,
        "quantization_config": {"quant_method": method, "bits": 4, "group_size": 32},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | more))
    return " ".join(network_faults(folder, dict.fromkeys(names, "model.safetensors")))


def names_of(method: str, layers: int = LAYERS) -> list[str]:
    quantized = [
        f"model.layers.{number}.{module}.{suffix}"
        for number in range(layers)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for suffix in SUFFIXES[method]
    ]
    norms = [f"model.layers.{number}.input_layernorm.weight" for number in range(layers)]
    return ["model.embed_tokens.weight", "model.norm.weight", *norms, *quantized]


@pytest.mark.parametrize("method", SUFFIXES)
def test_whole_files_have_no_faults(tmp_path: Path, method: str) -> None:
    names = [*names_of(method), f"lm_head.{SUFFIXES[method][0]}"]
    assert faults(tmp_path, names, "Qwen2ForCausalLM", "qwen2", method) == ""


@pytest.mark.parametrize("method", SUFFIXES)
def test_files_without_a_head_are_refused_unless_it_is_tied(tmp_path: Path, method: str) -> None:
    names = names_of(method)
    result = faults(tmp_path, names, "LlamaForCausalLM", "llama", method)
    assert "lm_head.weight is not in the files" in result
    assert '"tie_word_embeddings": true' in result
    assert faults(tmp_path, names, "LlamaForCausalLM", "llama", method, tie_word_embeddings=True) == ""
    assert faults(tmp_path, names, "Gemma2ForCausalLM", "gemma2", method) == "", "tied in its family"


def test_files_that_end_before_the_last_layer_are_refused(tmp_path: Path) -> None:
    names = [*names_of("gptq", LAYERS - 1), "lm_head.weight"]
    result = faults(tmp_path, names, "LlamaForCausalLM", "llama")
    assert f"lack 1 of the weights of a LlamaForCausalLM: model.layers.{LAYERS - 1}" in result


def test_a_head_of_another_name_is_no_fault(tmp_path: Path) -> None:
    names = ["gpt_neox.embed_in.weight", "gpt_neox.layers.0.attention.dense.qweight", "embed_out.weight"]
    assert faults(tmp_path, names, "GPTNeoXForCausalLM", "gpt_neox") == ""
