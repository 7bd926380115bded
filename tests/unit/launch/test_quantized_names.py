"""Quantized files are compared by their layers and head: each method names its tensors by itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch.checks.network import network_faults
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest
from registry.errors import Unfit
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of

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


def test_a_quantization_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    """As older ModelOpts store it. NVFP4's packed weights were taken for those of another config.json."""
    quantization = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": LAYERS}
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = [*names_of("fp8"), "lm_head.weight"]
    assert not [*network_faults(tmp_path, dict.fromkeys(names, "model.safetensors"))]
    config |= {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}
    listing = listing_of({"config.json": config, "hf_quant_config.json": quantization}, {"model.safetensors": 10**6})
    with pytest.raises(Unfit, match=r"quantized as modelopt_fp4, NVFP4, which this CPU does not support"):
        propose(listing, HubSource(hub="a/b", revision="0" * 40), ModelRequest("x"), Machine("cpu", 8 << 30))
